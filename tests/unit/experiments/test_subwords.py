"""Subwords: what goes in comes out, the same model every time, and errors that say what to set."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_fixed.experiments.corpus import TextError
from fairseq_fixed.experiments.subwords import (
    decode_lines,
    encode_file,
    encode_lines,
    load_model,
    train_subwords,
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    rng = random.Random(1)
    syllables = [a + b for a in "bdflmnprst" for b in "aeioué"]
    words = ["".join(rng.choices(syllables, k=rng.randrange(1, 4))) for _ in range(400)]
    files = []
    for name in ("train.es", "train.en"):
        lines = [" ".join(rng.choices(words, k=rng.randrange(0, 12))) for _ in range(500)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        files.append(folder / name)
    return files


@pytest.fixture(scope="module")
def model(texts, tmp_path_factory):
    return train_subwords(texts, tmp_path_factory.mktemp("model") / "joint", 200)


def test_files_with_empty_lines_keep_their_lines(model, texts, tmp_path):
    out = tmp_path / "out"
    lines = texts[0].read_text().splitlines()
    assert "" in lines
    assert encode_file(model, texts[0], out) == len(lines)
    encoded = out.read_text().splitlines()
    assert [not line for line in encoded] == [not line for line in lines]
    assert decode_lines(model, encoded) == lines
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_model(texts, tmp_path, kind):
    one = train_subwords(texts, tmp_path / "one", 150, type=kind, max_sentences=300)
    two = train_subwords(texts, tmp_path / "two", 150, type=kind, max_sentences=300)
    assert one.read_bytes() == two.read_bytes()
    assert load_model(one).get_piece_size() == 150
    vocabulary = one.with_suffix(".vocab").read_text().splitlines()
    assert len(vocabulary) == 150
    assert [line.split("\t")[0] for line in vocabulary[:3]] == ["<unk>", "<s>", "</s>"]


def test_nothing_is_said_on_stderr(texts, tmp_path, capfd):
    train_subwords(texts, tmp_path / "m", 100)
    with pytest.raises(TextError):
        train_subwords(texts, tmp_path / "m", 90_000)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_too_large_says_the_largest_that_works(texts, tmp_path, kind):
    with pytest.raises(TextError, match=r"subwords\.size to \d+ or less") as error:
        train_subwords(texts, tmp_path / "m", 90_000, type=kind)
    largest = int(str(error.value).split("subwords.size to ")[1].split()[0])
    assert not list(tmp_path.iterdir())
    train_subwords(texts, tmp_path / "m", largest, type=kind)


def test_a_vocabulary_smaller_than_the_alphabet_says_so(texts, tmp_path):
    with pytest.raises(TextError, match=r"subwords\.size to more than \d+"):
        train_subwords(texts, tmp_path / "m", 5)


def test_other_errors_keep_their_message(texts, tmp_path):
    with pytest.raises(TextError, match="nowhere does not exist"):
        train_subwords([texts[0], tmp_path / "nowhere"], tmp_path / "m", 100)
    blank = tmp_path / "blank"
    blank.write_text("\n\n")
    with pytest.raises(TextError, match="no text to train"):
        train_subwords([blank], tmp_path / "m", 100)
    with pytest.raises(TextError, match="not a sentencepiece model"):
        load_model(blank)
    with pytest.raises(TextError, match="cannot be read"):
        load_model(tmp_path / "nowhere")
    (tmp_path / "latin").write_bytes(b"na\xefve\n")
    with pytest.raises(TextError, match="line 1"):
        train_subwords([tmp_path / "latin"], tmp_path / "m", 100)
    with pytest.raises(TextError, match="type"):
        train_subwords(texts, tmp_path / "m", 100, type="words")
    with pytest.raises(TextError, match="character_coverage"):
        train_subwords(texts, tmp_path / "m", 100, character_coverage=0)


def test_a_long_line_is_left_out_and_said(texts, tmp_path, caplog):
    long = tmp_path / "long"
    long.write_text("ba" * 20_000 + "\n")
    train_subwords([*texts, long], tmp_path / "m", 100)
    assert "1 lines longer" in caplog.text


def test_text_that_reads_like_a_special_symbol_is_no_special_symbol(model):
    specials = {"<s>", "</s>", "<pad>"}
    for line in encode_lines(model, ["ba <s> </s> <pad> <unk> ba", "<pad>", "</s>ba"]):
        assert not specials & set(line.split())


def test_decoding_reads_what_fairseq_writes(model):
    assert decode_lines(model, ["", "\u2581ba <unk> \u2581ba", "\u2581zz \u2581ba"]) == [
        "",
        "ba \u2047 ba",
        "zz ba",
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(alphabet="abdeiélmnoprstu", min_size=1, max_size=9), max_size=9))
def test_decode_undoes_encode(model, words):
    line = " ".join(words)
    [encoded] = encode_lines(model, [line])
    assert decode_lines(model, [encoded]) == [line]


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_text_gives_one_line_of_pieces_without_white_space(model, text):
    text = text.encode("utf-8", "ignore").decode()
    [encoded] = encode_lines(model, [text])
    assert encoded.split() == encoded.split(" ") or not encoded
