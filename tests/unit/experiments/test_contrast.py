import gzip
import json
import math
import random

import pytest
import torch
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_fixed.experiments import contrast, contrast_report
from fairseq_fixed.experiments.contrast_pairs import Item, Wrong, read_items
from fairseq_fixed.experiments.corpus import TextError
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.resources import data_folder
from fairseq_fixed.experiments.trained import Loaded
from tests.unit.models.models_common import build, dictionary

AGREEMENT = data_folder() / "contrast/agreement_es_en.tsv"


def loaded(*flags):
    """A model of random weights, with a translation task around it."""
    words = dictionary()
    task = TranslationTask(TranslationConfig(source_lang="a", target_lang="b"), words, words)
    torch.manual_seed(1)
    model = build("--encoder-heads", "7f+1l", "--max-source-positions", "40", *flags, a_task=task)
    return Loaded(model.eval(), task, torch.device("cpu"))


def sentence(rng, most=12):
    return " ".join(f"w{rng.randrange(30)}" for _ in range(rng.randint(1, most)))


def directly(one, source, target):
    """The sum of the target's log-probabilities, a token after the other, without a batch."""
    words = one.task.source_dictionary
    src, tgt = (words.encode_line(t, add_if_not_exist=False).long() for t in (source, target))
    total = 0.0
    for step in range(len(tgt)):
        before = torch.cat([torch.tensor([words.eos()]), tgt[:step]])[None]
        with torch.no_grad():
            out = one.model(src[None], torch.tensor([len(src)]), before)
        total += float(torch.log_softmax(out[0][0, -1], -1)[tgt[step]])
    return total, len(tgt)


@pytest.mark.parametrize("max_tokens", [1, 60, 4000])
def test_the_score_is_the_log_probability(max_tokens):
    one, rng = loaded(), random.Random(0)
    pairs = [(sentence(rng), sentence(rng)) for _ in range(12)]
    found = contrast.log_probabilities(one, pairs, max_tokens=max_tokens)
    for pair, scored in zip(pairs, found, strict=True):
        total, count = directly(one, *pair)
        assert scored.subwords == count
        assert scored.score("sum") == pytest.approx(total, abs=1e-3)
        assert scored.score("mean") == pytest.approx(total / count, abs=1e-3)


def test_what_is_too_long_is_left_out():
    one, rng = loaded("--max-target-positions", "9"), random.Random(0)
    long, short = " ".join(["w1"] * 40), sentence(rng, 5)
    pairs = [(long, short), (short, short), (short, long), (" ".join(["w2"] * 39), short)]
    found = contrast.log_probabilities(one, pairs)
    assert [f is None for f in found] == [True, False, True, False]
    assert [f is None for f in contrast.log_probabilities(one, pairs, longest=5)][3]
    items = [Item(short, short, (Wrong("w3"), Wrong(long))), Item(long, short, (Wrong("w4"),))]
    counted = contrast.tally(contrast.judge(one, items))
    assert counted["too_long"] == 2 and counted["pairs"]["total"] == 1
    assert counted["sentences"]["total"] == 0  # neither was scored whole


@pytest.mark.parametrize("max_tokens", [30, 200])
def test_what_is_the_same_to_the_model_is_a_tie_however_it_is_batched(max_tokens):
    one, rng = loaded(), random.Random(0)
    items = []
    for _ in range(60):
        source, target = sentence(rng), sentence(rng)
        items.append(Item(source, f"{target} 漢", tuple(Wrong(f"{target} {c}") for c in "字学語")))
    counted = contrast.tally(contrast.judge(one, items, max_tokens=max_tokens))
    assert counted["ties"] == counted["pairs"]["total"] == 180
    assert counted["pairs"]["right"] == 0


def test_batches_hold_each_pair_once_and_no_more_than_allowed():
    rng = random.Random(0)
    sides = [[[0] * rng.randint(1, 30) for _ in range(50)] for _ in range(2)]
    batches = list(contrast._batches(range(50), sides, 100))
    assert sorted(i for batch in batches for i in batch) == list(range(50))
    for batch in batches:
        assert len(batch) * max(len(side[i]) for side in sides for i in batch) <= 100
    assert list(contrast._batches([3, 5], sides, 1)) in ([[3], [5]], [[5], [3]])


def judgement(reference, *wrong, types=None, distances=None):
    items = [Wrong("x", (types or {}).get(i), (distances or {}).get(i)) for i in range(len(wrong))]
    return contrast.Judgement(Item("s", "r", tuple(items)), reference, wrong)


def test_counting():
    counted = contrast.tally(
        [
            judgement(-1, -2, -0.5, types={0: "a", 1: "b"}, distances={0: 1, 1: 16}),
            judgement(-1, -1, types={0: "a"}, distances={0: 99}),
            judgement(-1, -3, types={0: "a"}, distances={0: 2}),
            judgement(-1, -3),
        ]
    )
    assert (counted["pairs"]["right"], counted["pairs"]["total"]) == (3, 5)
    assert (counted["sentences"]["right"], counted["sentences"]["total"]) == (2, 4)
    assert counted["ties"] == 1
    by_type = {k: (v["right"], v["total"]) for k, v in counted["by_type"].items()}
    assert by_type == {"a": (2, 3), "b": (0, 1)}
    assert list(counted["by_distance"]) == ["1", "2", "over 15"]
    assert counted["by_distance"]["over 15"]["total"] == 2
    empty = contrast.tally([judgement(None, -1)])
    assert empty["pairs"] == {"right": 0, "total": 0, "accuracy": None, "interval": None}


def test_wilsons_interval():
    # roots of |p - share| = z·sqrt(p(1 - p)/n), which is what the interval is made of
    for right, total in ((8, 10), (0, 10), (10, 10), (1, 1), (970, 1000)):
        low, high = contrast.wilson(right, total)
        assert 0 <= low <= right / total + 1e-12 and right / total - 1e-12 <= high <= 1 + 1e-12
        for p in (low, high):
            distance = 1.959963984540054 * math.sqrt(max(0, p * (1 - p)) / total)
            assert abs(p - right / total) == pytest.approx(distance, abs=1e-7)
    assert contrast.wilson(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)


def test_our_own_set_reads():
    items = read_items(AGREEMENT)
    assert len(items) == 32
    assert {w.type for i in items for w in i.wrong} == {"agreement", "agreement_attractor"}
    for item in items:
        (wrong,) = item.wrong
        words, others = item.reference.split(), wrong.text.split()
        (place,) = [k for k in range(len(words)) if words[k] != others[k]]  # one word alone
        assert place - 1 == wrong.distance  # from the noun, which is the second word


def test_tables_with_and_without_names(tmp_path):
    plain = tmp_path / "a.tsv"
    plain.write_text("s1\tr1\tx1\nS2\tr2\tx2\tagree\t3\ns1\tr1\tx3\nS3\tr3\tx4\t\t\nS3\tr3\tx5\n\n")
    items = read_items(plain)
    assert items[1] == Item("S2", "r2", (Wrong("x2", "agree", 3),))
    assert items[3] == Item("S3", "r3", (Wrong("x4"), Wrong("x5")))
    assert len(items) == 4
    named = tmp_path / "b.tsv.gz"
    with gzip.open(named, "wt") as file:
        file.write("Type\tcontrastive\tsource\treference\nt\tx\ts\tr\n")
    assert read_items(named) == [Item("s", "r", (Wrong("x", "t"),))]


def test_lingeval97_and_contrapro(tmp_path):
    file = tmp_path / "a.json"
    content = [
        {
            "source": "s", "reference": "r", "origin": "newstest",
            "errors": [
                {"type": "np_agreement", "contrastive": "x", "distance": 2, "frequency": 1},
                {"type": "polarity", "contrastive": "y"},
            ],
        },
        {
            "src segment": "s2", "ref segment": "r2", "src pronoun": "It", "ref pronoun": "er",
            "ante distance": 0,
            "errors": [{"type": "pronominal", "contrastive": "z"}, {"contrastive": "w"}],
        },
        {"source": "none", "reference": "of", "errors": []},
    ]  # fmt: skip
    file.write_text(json.dumps(content))
    assert read_items(file) == [
        Item("s", "r", (Wrong("x", "np_agreement", 2), Wrong("y", "polarity"))),
        Item("s2", "r2", (Wrong("z", "it:er", 0), Wrong("w", "it:er", 0))),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "s\tr\n", "line 1: expected source, reference .* got 2 columns"),
        ("a.tsv", "s\tr\tx\ns\tr\t \n", "line 2: contrastive is empty"),
        ("a.tsv", "s\tr a\tr  a\n", "line 1: the wrong variant is the reference itself"),
        ("a.tsv", "s\tr\tx\tt\tfar\n", "line 1: the distance 'far' is no whole number"),
        (
            "a.json",
            '[{"source": "s", "reference": "r", "errors": [{"contrastive": "x", '
            '"distance": 2.7}]}]',
            "the distance 2.7 is no whole number",
        ),
        ("a.tsv", "source\treference\n", "its first line names no contrastive"),
        ("a.tsv", "\nsource\treference\n", "its first line names no contrastive"),
        ("a.tsv", "src\tref\tcontrastive\ns\tr\tx\n", "its first line names no source, ref"),
        ("a.tsv", "\n\n", "holds no pairs"),
        ("a.csv", "s\tr\tx\n", "is a table"),
        ("a", "s\tr\tx\n", "is a table"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", "{}", "expected a list"),
        ("a.json", "[1]", "sentence 1: expected source"),
        ("a.json", '[{"errors": [3]}]', "an error is no object"),
        ("a.json", '[{"source": "s", "reference": 3, "errors": [{}]}]', "reference is empty"),
        ("a.json", "[]", "holds no pairs"),
    ],
)
def test_what_is_wrong_with_a_test_set_is_said(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ExperimentError, match=message):
        read_items(tmp_path / name)


def test_a_missing_test_set(tmp_path):
    with pytest.raises(TextError, match="does not exist"):
        read_items(tmp_path / "a.tsv")


def test_report_of_several_systems_and_seeds():
    one = contrast.tally([judgement(-1, -2, -3, types={0: "a", 1: "b"})])
    two = contrast.tally([judgement(-1, -2, 0, types={0: "a", 1: "b"})])
    models = [
        {"system": "vanilla", "seed": 1, **one},
        {"system": "vanilla", "seed": 2, **two},
        {"system": "8f", "seed": 1, **one},
    ]
    text = contrast_report.render({"file": "x.tsv", "score": "mean", "models": models})
    assert "| vanilla, seed 2 | 2 | 1 | 50.0 % | 9.5 to 90.5 | 0.0 % |" in text
    assert "- vanilla: 75.0 ± 35.4 % over 2 seeds" in text
    assert "| b | 1 | 50.0 ± 70.7 % | 100.0 % (20.7 to 100.0) |" in text
    assert "distance" not in text
    assert json.loads(json.dumps(models)) == models


def test_single_scores_as_a_table():
    item = Item("s", "r", (Wrong("x", "t", 3), Wrong("y")))
    odd = contrast.Judgement(Item("a\tb", "c\nd", (Wrong("e"),)), -1, (-2,))
    assert "\na b\tc d\te\t" in contrast_report.render_scores(["a"], [[odd]])
    judged = [[contrast.Judgement(item, -1.5, (-2.0, None))]] * 2
    lines = contrast_report.render_scores(["a", "b"], judged).split("\n")
    assert lines[0].split("\t")[5:] == [
        "a: reference", "a: contrastive", "b: reference", "b: contrastive",
    ]  # fmt: skip
    assert lines[1] == "s\tr\tx\tt\t3\t-1.500000\t-2.000000\t-1.500000\t-2.000000"
    assert lines[2] == "s\tr\ty\t\t\t-1.500000\t\t-1.500000\t"
