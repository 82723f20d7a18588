import logging

import pytest

from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.hypotheses import collect, parse_generated

GENERATED = """\
INFO a line of the log
S-1\t▁uno ▁dos
T-1\t▁one ▁two
H-1\t-0.5\t▁one ▁two
D-1\t-0.5\t▁one ▁two
P-1\t-0.1 -0.2
H-1\t-0.9\t▁second ▁best
H-0\t-0.25\t▁t en
H-2\t-0.25\t
Generate test with beam=2: BLEU4 = 1
"""


def decode(lines):
    return [line.replace(" ", "").replace("▁", " ").strip() for line in lines]


def run(tmp_path, text=GENERATED, source=("▁x",) * 3, target=("▁x",) * 3, longest=10):
    file = tmp_path / "generate-test.txt"
    file.write_text(text, encoding="utf-8")
    return collect(file, source=source, target=target, max_positions=longest, decode=decode)


def test_corpus_order_best_hypothesis_joined(tmp_path):
    lines, info = run(tmp_path)
    assert lines == ["ten", "one two", ""]
    assert info == {"sentences": 3, "too_long_source": [], "too_long_reference": [], "empty": 1}


def test_a_missing_sentence_is_an_error(tmp_path):
    with pytest.raises(ExperimentError, match=r"no translation of 1 of 4 sentences \(first: 4\)"):
        run(tmp_path, source=["▁x"] * 4, target=["▁x"] * 4)


def test_too_long_sentences_become_empty_lines_and_are_counted(tmp_path, caplog):
    source = ["▁x", "▁x", "▁x", "▁x " * 9 + "▁x", "▁x"]
    target = ["▁x", "▁x", "▁x", "▁x", "▁x " * 11]
    with caplog.at_level(logging.WARNING):
        lines, info = run(tmp_path, source=source, target=target)
    assert lines[3:] == ["", ""]
    assert (info["too_long_source"], info["too_long_reference"]) == ([4], [5])
    assert "model.max_positions" in caplog.text


def test_a_sentence_of_exactly_the_longest_length_must_be_there(tmp_path):
    source = ["▁x", "▁x", "▁x", " ".join(["▁x"] * 9)]  # with </s>: 10
    with pytest.raises(ExperimentError, match="not too long"):
        run(tmp_path, source=source, target=["▁x"] * 4)


def test_output_of_another_test_set(tmp_path):
    with pytest.raises(ExperimentError, match="holds sentence 3, but the test set has 2"):
        run(tmp_path, source=["▁x"] * 2, target=["▁x"] * 2)


def test_a_cut_line_is_an_error():
    with pytest.raises(ExperimentError, match="line 2 of fairseq-generate's output is cut"):
        parse_generated(["S-1\tx", "H-1\t-0.5"])


def test_unicode_line_separators_do_not_split_lines(tmp_path):
    lines, _ = run(tmp_path, text="H-0\t-1\t▁a\u2028b\u0085\n", source=["▁x"], target=["▁x"])
    assert len(lines) == 1
