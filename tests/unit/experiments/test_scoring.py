import pytest

from fairseq_fixed.experiments import verbs
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.scoring import compare, make_metrics, read_lines, score

REFERENCE = [f"the cat number {i} sat on the mat beside dog {i % 7}" for i in range(40)]
GOOD = [line.replace("beside", "near") if i % 3 else line for i, line in enumerate(REFERENCE)]
BAD = [line.replace("cat", "x").replace("mat", "y").replace("sat", "z") for line in REFERENCE]


def test_scores_are_sacrebleus_with_signatures():
    import sacrebleu

    scores = score(GOOD, REFERENCE, make_metrics(["bleu", "chrf", "chrf++", "ter"], "13a"))
    assert scores["bleu"]["score"] == sacrebleu.corpus_bleu(GOOD, [REFERENCE]).score
    assert scores["chrf"]["score"] == sacrebleu.corpus_chrf(GOOD, [REFERENCE]).score
    assert "tok:13a" in scores["bleu"]["signature"]
    assert "nw:0" in scores["chrf"]["signature"] and "nw:2" in scores["chrf++"]["signature"]
    assert score(REFERENCE, REFERENCE, make_metrics(["bleu"], "13a"))["bleu"]["score"] > 99.9


@pytest.mark.parametrize("tokenize", ["zh", "char"])
def test_ter_of_languages_without_spaces(tokenize):
    reference, hypothesis = ["彼は猫が好きだ。"], ["彼は犬が好きだ。"]
    found = score(hypothesis, reference, make_metrics(["ter"], tokenize))["ter"]
    assert "asian:yes" in found["signature"] and "norm:yes" in found["signature"]
    assert 0 < found["score"] < 50  # not the one word of a sentence, wrong as a whole
    assert score(hypothesis, reference, make_metrics(["ter"], "13a"))["ter"]["score"] == 100


@pytest.mark.parametrize("tokenize", ["13a", "zh", "char", "intl", "none"])
def test_tokenizers_are_in_the_signature(tokenize):
    found = score(GOOD, REFERENCE, make_metrics(["bleu"], tokenize))["bleu"]
    assert f"|tok:{tokenize}|" in found["signature"]


def test_different_numbers_of_lines():
    with pytest.raises(ExperimentError, match="39 lines, the reference 40"):
        score(GOOD[1:], REFERENCE, make_metrics(["bleu"], "13a"))
    with pytest.raises(ExperimentError, match="nothing to score"):
        score([], [], make_metrics(["bleu"], "13a"))


def test_unknown_metrics_and_tokenizers():
    with pytest.raises(ExperimentError, match="metric 'blue' is unknown"):
        make_metrics(["blue"], "13a")
    with pytest.raises(ExperimentError, match="cannot tokenize with 'nonsense'"):
        make_metrics(["bleu"], "nonsense")


def test_paired_tests_tell_a_difference_from_none():
    tests = compare(
        ("base", BAD),
        [("good", GOOD), ("same", list(BAD))],
        REFERENCE,
        make_metrics(["bleu", "chrf"], "13a"),
        bootstrap=200,
        trials=200,
    )
    for test in ("bootstrap", "randomisation"):
        for metric in ("bleu", "chrf"):
            result = tests["tests"][test][metric]
            assert result["base"]["p"] is None
            assert result["good"]["p"] < 0.05
            assert result["same"]["p"] > 0.5
            assert tests["signatures"][test][metric]
    assert tests["tests"]["bootstrap"]["bleu"]["good"]["interval"] > 0


def test_randomisation_can_be_left_out():
    tests = compare(
        ("b", BAD), [("g", GOOD)], REFERENCE, make_metrics(["bleu"], "13a"), bootstrap=20, trials=0
    )
    assert list(tests["tests"]) == ["bootstrap"]


def test_folders_of_one_name_are_not_taken_for_one_system(tmp_path):
    one, other = tmp_path / "a/vanilla", tmp_path / "b/vanilla"
    with pytest.raises(ExperimentError, match="have one name"):
        verbs.compare(
            reference=tmp_path, baseline=one, system=[other], seeds="1", out=tmp_path / "x.json"
        )
    assert not (tmp_path / "x.json").exists()


def test_lines_are_split_at_newlines_alone(tmp_path):
    file = tmp_path / "f"
    file.write_bytes("a\u2028b\n\nc\x0c\n".encode())
    assert read_lines(file) == ["a\u2028b", "", "c\x0c"]
    file.write_bytes(b"\xff\n")
    with pytest.raises(ExperimentError, match="not UTF-8"):
        read_lines(file)
    with pytest.raises(ExperimentError, match="cannot read"):
        read_lines(tmp_path / "missing")
