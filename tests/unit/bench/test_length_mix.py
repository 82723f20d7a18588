import random
from collections import Counter

import pytest
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary, LanguagePairDataset

from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.grid import Grid, describe_lengths
from fairseq_fixed.bench.length_mix import LengthMix


def random_mix(count: int = 300) -> LengthMix:
    draw = random.Random(0)
    return LengthMix.count(
        ((draw.randint(2, 30), draw.randint(2, 40)) for _ in range(count)), "a test"
    )


def test_the_embedded_corpus_is_counted():
    mix = LengthMix.embedded()
    assert sum(mix.pairs.values()) == 21_580
    sources = [s for (s, _), count in mix.pairs.items() for _ in range(count)]
    assert 30 < sum(sources) / len(sources) < 36
    assert "embedded" in mix.about


def test_batches_keep_to_the_tokens_and_lose_no_sentence():
    mix = random_mix()
    batches = mix.sample(200, 10_000, seed=1)
    assert Counter(pair for batch in batches for pair in batch) == Counter(mix.pairs)
    for batch in batches:
        assert len(batch) * max(map(max, batch)) <= 200


def test_batches_are_those_of_fairseq():
    mix = random_mix()
    pairs = [pair for pair, count in mix.pairs.items() for _ in range(count)]
    data = LanguagePairDataset(
        [[0] * s for s, _ in pairs],
        [s for s, _ in pairs],
        Dictionary(),
        [[0] * t for _, t in pairs],
        [t for _, t in pairs],
        Dictionary(),
        shuffle=False,
    )
    theirs = data.batch_by_size(data.ordered_indices(), max_tokens=200)
    # equal pairs are alike, so shuffling them changes no batch's lengths
    expected = Counter(tuple(sorted(pairs[i] for i in batch)) for batch in theirs)
    mine = Counter(tuple(sorted(batch)) for batch in mix.sample(200, 10_000, seed=5))
    assert mine == expected


def test_the_seed_decides_which_batches_are_drawn():
    mix = random_mix()
    assert mix.sample(200, 3, seed=1) == mix.sample(200, 3, seed=1)
    assert mix.sample(200, 3, seed=1) != mix.sample(200, 3, seed=2)
    assert len(mix.sample(200, 3, seed=1)) == 3


def test_a_sentence_longer_than_a_batch_is_named():
    with pytest.raises(BenchError, match="20 tokens a batch: a test has a sentence of 40 tokens"):
        LengthMix.count([(3, 40)], "a test").sample(20, 1, 0)


def test_a_mix_survives_being_written_and_read(tmp_path):
    mix = random_mix()
    mix.write(tmp_path / "mix.json")
    assert LengthMix.read(tmp_path / "mix.json") == mix


def test_text_is_counted_with_the_end_of_sentence(tmp_path):
    (tmp_path / "a").write_text("x y z\n\nx\n", encoding="utf-8")
    (tmp_path / "b").write_text("x\ny\nz z\n", encoding="utf-8")
    assert LengthMix.of_text(tmp_path / "a", tmp_path / "b").pairs == {
        (4, 2): 1,
        (1, 2): 1,
        (2, 3): 1,
    }
    assert LengthMix.of_text(tmp_path / "a").pairs == {(4, 4): 1, (1, 1): 1, (2, 2): 1}
    (tmp_path / "b").write_text("x\n", encoding="utf-8")
    with pytest.raises(BenchError, match="has 3 lines"):
        LengthMix.of_text(tmp_path / "a", tmp_path / "b")


def test_the_name_of_a_text_is_not_kept(tmp_path):
    (tmp_path / "secret").write_text("x y\n", encoding="utf-8")
    assert "secret" not in LengthMix.of_text(tmp_path / "secret").about


def test_binarised_data_is_counted(tmp_path):
    dictionary = Dictionary()
    for word in "xyz":
        dictionary.add_symbol(word)
    dictionary.finalize(padding_factor=1)
    for language, text in (("de", "x y z\nx\n"), ("en", "z\ny z\n")):
        (tmp_path / language).write_text(text, encoding="utf-8")
        FileBinarizer.multiprocess_dataset(
            str(tmp_path / language),
            "mmap",
            VocabularyDatasetBinarizer(dictionary, append_eos=True),
            str(tmp_path / f"train.de-en.{language}"),
            vocab_size=len(dictionary),
            num_workers=1,
        )
    assert LengthMix.of_data(tmp_path).pairs == {(4, 2): 1, (2, 3): 1}
    with pytest.raises(BenchError, match=r"no valid\.SRC-TGT"):
        LengthMix.of_data(tmp_path, "valid")


def test_no_sentences_are_no_mix():
    with pytest.raises(BenchError, match="no sentences"):
        LengthMix.count([], "nothing")
    with pytest.raises(BenchError, match="no tokens"):
        LengthMix.count([(0, 3)], "nothing")


def test_a_grid_has_as_many_shapes_as_it_says():
    grid = Grid(lengths=(5, 9), mix=random_mix(), batches=2, tokens=(60, 90), paddings=(0.0, 0.2))
    shapes = list(grid.shapes(seed=1))
    assert len(shapes) == len(grid) == 2 * (1 + 2 * 2)
    for shape in shapes:
        assert shape.case["sentences"] == sum(map(len, shape.lengths))
        if shape.case["length"] == "real":
            assert shape.case["batches"] == 2
        else:
            assert shape.case["longest"] == shape.case["length"]


def test_what_is_said_of_lengths():
    assert describe_lengths([[4, 2], [3]]) == {
        "batches": 2,
        "sentences": 3,
        "positions": 11,
        "longest": 4,
        "padding": 0.1818,
    }


def test_a_grid_of_nothing_is_refused():
    with pytest.raises(BenchError, match="nothing given"):
        Grid(lengths=())
    with pytest.raises(BenchError, match="0 batches"):
        Grid(batches=0)
