import json

import numpy as np
import pytest

from fairseq_fixed.experiments import counts
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.scoring import make_metrics
from tests.unit.experiments.test_scoring import BAD, GOOD, REFERENCE

ALL = ["bleu", "chrf", "chrf++", "ter"]


def through_json(packed):
    return json.loads(json.dumps(packed))


@pytest.mark.parametrize("tokenize", ["13a", "char", "intl", "zh"])
@pytest.mark.parametrize("lines", [GOOD, BAD, ["", *GOOD[1:]]])
def test_kept_counts_give_sacrebleus_scores_exactly(lines, tokenize):
    metrics = make_metrics(ALL, tokenize)
    packed = through_json(counts.pack(counts.count(lines, REFERENCE, metrics), REFERENCE))
    # no tokenizer is needed to make a score of counts
    later = make_metrics(ALL, "none")
    for name, table in counts.unpack(packed).items():
        expected = metrics[name].corpus_score(lines, [REFERENCE]).score
        assert counts.score_of(later[name], table.sum(0)) == expected
        part = metrics[name].corpus_score(lines[:7], [REFERENCE[:7]]).score
        assert counts.score_of(later[name], table[:7].sum(0)) == part


@pytest.mark.parametrize("largest", [255, 256, 65_535, 65_536])
def test_nothing_is_lost_in_packing(largest):
    table = np.array([[0, largest, 3], [largest, 1, 2]])
    packed = through_json(counts.pack({"bleu": table}, ["a", "b"]))
    assert np.array_equal(counts.unpack(packed)["bleu"], table)


def test_it_holds_no_text_and_tells_references_apart():
    table = {"bleu": np.ones((2, 10), dtype=int)}
    one = counts.pack(table, ["first secret", "second"])
    assert "secret" not in json.dumps(one)
    assert one["reference"] != counts.pack(table, ["first secret", "other"])["reference"]
    assert one["reference"] != counts.pack(table, ["first", "secret second"])["reference"]
    assert one["sentences"] == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p["counts"]["bleu"].update(data="!"),
        lambda p: p["counts"]["bleu"].update(data="AAAA"),
        lambda p: p["counts"]["bleu"].update(columns=7),
        lambda p: p.update(sentences=3),
        lambda p: p.pop("sentences"),
        lambda p: p.update(counts=None),
    ],
)
def test_damage_is_named(change):
    packed = counts.pack({"bleu": np.ones((2, 10), dtype=int)}, ["a", "b"])
    change(packed)
    with pytest.raises(ExperimentError, match=r"vanilla, seed 1: its counts .* are damaged"):
        counts.unpack(packed, "vanilla, seed 1")
