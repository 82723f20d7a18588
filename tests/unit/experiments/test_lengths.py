import json

import numpy as np
import pytest

from fairseq_fixed.experiments import counts, length_view, lengths
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.scoring import make_metrics
from tests.unit.experiments.test_scoring import BAD, GOOD, REFERENCE

METRICS = make_metrics(["bleu", "chrf", "ter"], "13a")
TRAINING = {"sentences": 100, "median": 5, "percentile95": 15, "percentile99": 25, "longest": 30}


def by_length(hypotheses, source_lengths, training=TRAINING):
    tables = counts.count(hypotheses, REFERENCE, METRICS)
    return lengths.score_by_length(tables, METRICS, source_lengths, training)


def test_subwords_are_counted_without_the_end_mark(tmp_path):
    assert list(lengths.subword_lengths(["▁a b ▁c", "", "  ", "x"])) == [3, 0, 0, 1]
    file = tmp_path / "f"
    file.write_text("▁a b ▁c\n\n  \nx", encoding="utf-8")
    assert list(lengths.file_lengths(file)) == [3, 0, 0, 1]
    with pytest.raises(ExperimentError, match="cannot read"):
        list(lengths.file_lengths(tmp_path / "missing"))


def test_percentiles_are_lengths_that_occur_and_cover_what_they_say():
    values = [*[5] * 94, 7, 9, 9, 20, 20, 80]
    found = lengths.describe_training(values)
    assert found == {
        "sentences": 100, "median": 5, "percentile95": 7, "percentile99": 20, "longest": 80,
    }  # fmt: skip
    for key, share in (("percentile95", 0.95), ("percentile99", 0.99)):
        assert sum(v <= found[key] for v in values) / 100 >= share
    assert lengths.describe_training([3]) == {
        "sentences": 1, "median": 3, "percentile95": 3, "percentile99": 3, "longest": 3,
    }  # fmt: skip
    with pytest.raises(ExperimentError, match="training text is empty"):
        lengths.describe_training([])


def test_a_buckets_score_is_sacrebleus_of_its_sentences():
    rng = np.random.default_rng(0)
    source_lengths = rng.integers(1, 120, size=40).tolist()
    found = by_length(GOOD, source_lengths)
    for scheme in ("by_length", "by_training"):
        buckets = found[scheme]
        assert sum(b["sentences"] for b in buckets) == 40  # each sentence once
        for bucket in buckets:
            top = bucket["to"] or 10_000
            chosen = [i for i, n in enumerate(source_lengths) if bucket["from"] <= n <= top]
            assert len(chosen) == bucket["sentences"]
            for name, value in bucket["scores"].items():
                score = METRICS[name].corpus_score(
                    [GOOD[i] for i in chosen], [[REFERENCE[i] for i in chosen]]
                )
                assert value == score.score


def test_one_bucket_of_all_has_the_corpus_score():
    (bucket,) = by_length(BAD, [12] * 40)["by_length"]
    assert (bucket["from"], bucket["to"], bucket["sentences"]) == (11, 20, 40)
    assert bucket["scores"]["bleu"] == METRICS["bleu"].corpus_score(BAD, [REFERENCE]).score


def test_lengths_at_the_edges():
    found = by_length(GOOD, [0, 10, 11, 100, 101, *[15] * 5, *[16] * 5, *[30] * 5, *[31] * 20])
    assert [(b["from"], b["to"], b["sentences"]) for b in found["by_length"]] == [
        (0, 10, 2), (11, 20, 11), (21, 30, 5), (31, 40, 20), (81, 100, 1), (101, None, 1),
    ]  # fmt: skip
    assert [(b["name"], b["sentences"]) for b in found["by_training"]] == [
        ("up to 95 %", 8), ("up to 99 %", 5), ("up to the longest", 5), ("longer than any", 22),
    ]  # fmt: skip


def test_small_buckets_and_empty_ones_are_marked():
    found = by_length(GOOD, [5] * 40)
    assert [b["small"] for b in found["by_length"]] == [True]
    beyond = found["by_training"][-1]
    assert beyond["sentences"] == 0 and beyond["scores"] == {}
    tables = counts.count(GOOD * 2, REFERENCE * 2, METRICS)
    found = lengths.score_by_length(tables, METRICS, [*[5] * 50, *[15] * 30], TRAINING)
    assert [b["small"] for b in found["by_length"]] == [False, True]


def test_numbers_of_sentences_that_differ():
    with pytest.raises(ExperimentError, match="40 sentences, but the source has 39"):
        by_length(GOOD, [1] * 39)


def test_the_lengths_are_kept_beside_the_counts():
    source = [" ".join("x" * (1 + i)) for i in range(40)]
    packed, found = lengths.account(GOOD, REFERENCE, METRICS, source=source, train=[2, 3])
    packed = json.loads(json.dumps(packed))
    assert counts.unpack_lengths(packed).tolist() == list(range(1, 41))
    assert found["training"]["longest"] == 3
    assert counts.unpack_lengths({"sentences": 1, "counts": {}}) is None


def result(system, seed, source_lengths, hypotheses=GOOD):
    return {"system": system, "seed": seed, "lengths": by_length(hypotheses, source_lengths)}


def test_tables_of_two_systems_and_two_seeds(tmp_path):
    source_lengths = [*[5] * 20, *[15] * 20]
    results = [
        result("vanilla", 1, source_lengths, BAD),
        result("vanilla", 2, source_lengths, BAD),
        result("8f", 1, source_lengths),
        {"system": "old", "seed": 1},
    ]
    text = "\n".join(length_view.length_section(results))
    assert "|  |  | 1 to 10 | 11 to 20 |" in text
    assert "| sentences |  | 20 | 20 |" in text
    low = results[2]["lengths"]["by_length"][0]["scores"]["bleu"]
    assert f"| 8f | BLEU | ({low:.1f}) |" in text
    assert "| vanilla | BLEU | (" in text and "± 0.0)" in text
    assert "over 30: longer than any" in text and "| sentences |  | 40 | 0 | 0 | 0 |" in text
    assert "fewer than 50 sentences" in text and "longest 30" in text
    assert "old" not in text
    picture = tmp_path / "new/lengths.png"
    assert length_view.draw_lengths(results, picture, title="t")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_results_of_an_older_version_have_no_table(tmp_path):
    old = [{"system": "old", "seed": 1}, {"system": "none", "seed": 1, "lengths": None}]
    assert length_view.length_section(old) == []
    assert not length_view.draw_lengths(old, tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()
