"""`fairseq-fixed patterns`: what is drawn, and that nothing but one line comes out of an error."""

import pytest
import torch
from typer.testing import CliRunner

from fairseq_fixed.analysis.patterns import (
    PatternsError,
    _count_columns,
    draw_patterns,
    make_layout,
    make_panels,
)
from fairseq_fixed.cli import app
from fairseq_fixed.heads import KINDS, format_mix, parse_mix
from tests.conftest import every_spec
from tests.unit.attention.test_paper_patterns import table

SENTENCE = "▁En ▁el ▁principio ▁cri ó ▁Dios"
TOKENS = [*SENTENCE.split(), "</s>"]
SIGNATURES = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.fixture
def dictionary(tmp_path):
    path = tmp_path / "dict.es.txt"
    lines = ["▁el 90", "▁En 50", "ó 40", "▁Dios 30", "▁cri 9", "▁principio 5"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_panels_are_the_papers_patterns():
    panels = make_panels(parse_mix("7f+1l"), make_layout(None, 9))
    assert [panel.title for panel in panels][-1] == "learned"
    for panel in panels[:-1]:
        torch.testing.assert_close(panel.weights, table(panel.title, 9).float())
    assert panels[-1].learned
    assert (panels[-1].weights == 1).all()


def test_equal_heads_share_a_panel_and_unequal_ones_do_not():
    layout = make_layout(None, 6)
    panels = make_panels(parse_mix("2xcurrent+3xsyntactic:1+2xrandom+3l"), layout)
    assert [panel.title for panel in panels] == [
        "2 × current",
        "3 × syntactic:1",
        "random",
        "random",
        "3 × learned",
    ]
    assert [panel.untrained for panel in panels] == [False, False, True, True, False]


def test_learned_heads_show_where_they_may_attend():
    (panel,) = make_panels(parse_mix("band:1"), make_layout(None, 4))
    assert panel.weights.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]


def test_words_and_rarity_of_a_sentence(dictionary):
    layout = make_layout(TOKENS, 0, dictionary)
    words, rare = make_panels(parse_mix("currentw+rare:1:1"), layout)
    assert words.weights[3].tolist() == [0, 0, 0, 0.5, 0.5, 0, 0]  # ▁cri and ó are one word
    assert rare.weights.argmax(-1).tolist() == [0, 2, 2, 2, 4, 5, 6]  # ▁principio is rarest
    # without a dictionary words are read off the sentence itself, by either mark or none
    (words,) = make_panels(parse_mix("currentw"), make_layout(TOKENS, 0))
    assert words.weights[3, 4] == 0.5
    (words,) = make_panels(parse_mix("currentw"), make_layout(["cri@@", "ó", "a"], 0))
    assert words.weights[0].tolist() == [0.5, 0.5, 0]
    (words,) = make_panels(parse_mix("currentw"), make_layout(["uno", "dos"], 0))
    assert torch.equal(words.weights, torch.eye(2))


def test_a_token_that_the_dictionary_lacks_is_rarest(dictionary):
    layout = make_layout(["▁Moisés", "▁principio", "</s>"], 0, dictionary)
    (rare,) = make_panels(parse_mix("rare:1:1"), layout)
    assert rare.weights.argmax(-1).tolist() == [0, 0, 2]


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_every_kind_is_drawn(tmp_path, dictionary, suffix):
    if suffix == ".png":
        mix = format_mix(tuple(every_spec()))
        assert all(kind in mix for kind in KINDS)
    else:
        mix = "0-1@7f+1l/2@4xband:2+2xoff+2l"
    path = tmp_path / "deep" / f"heads{suffix}"
    assert draw_patterns(mix, path, sentence=SENTENCE, dictionary=dictionary) == path
    assert path.read_bytes().startswith(SIGNATURES[suffix])


def test_the_same_picture_twice(tmp_path):
    for name in ("one.png", "two.png"):
        draw_patterns("random+7fw+previous", tmp_path / name, sentence=SENTENCE)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_drawing_leaves_the_random_state_alone(tmp_path):
    before = torch.get_rng_state()
    draw_patterns("random+current", tmp_path / "a.svg", length=3)
    assert torch.equal(before, torch.get_rng_state())


def test_a_block_for_each_mix(tmp_path):
    path = tmp_path / "blocks.svg"
    draw_patterns("0-2@7f+1l/3@8l/4-5@7f+1l", path, length=4)
    drawn = path.read_text()
    assert [f"layer{name} -->" in drawn for name in ("s 0-2", " 3", "s 4-5")] == [True] * 3
    draw_patterns("7f+1l", path, length=4, layers=6)
    assert "layer" not in path.read_text().replace("layers=", "")


@pytest.mark.parametrize(
    ("sizes", "columns"), [([1], 1), ([4], 4), ([8], 4), ([5, 3], 3), ([9], 3), ([15], 5)]
)
def test_columns(sizes, columns):
    assert _count_columns(sizes) == columns


def run(*args: str):
    return CliRunner().invoke(app, ["patterns", *map(str, args)])


def test_command(tmp_path, dictionary):
    out = tmp_path / "patterns.png"
    result = run("7f+1l", "--length", "12", "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    assert out.read_bytes().startswith(SIGNATURES[".png"])
    arguments = ("--sentence", SENTENCE, "--dict", dictionary, "--layers", "2", "--out", out)
    assert run("1@3l/0@rare:2:1+2xpreviousw", *arguments).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["7f+lerned"], "lerned"),
        ([""], "expected a mix"),
        (["0-1@7f+1l/2@7l"], "7 heads"),
        (["0@8l", "--layers", "2"], "nothing of layers 1"),
        (["8l", "--length", "0"], "0 tokens"),
        (["8l", "--length", "9999"], "9999 tokens"),
        (["7fw+1l"], "currentw is word-based: give --sentence"),
        (["rare:1:1"], "--dict"),
        (["rare:1:1", "--sentence", SENTENCE], "--dict"),
        (["rare:1:1", "--sentence", SENTENCE, "--dict", "nowhere.txt"], "nowhere.txt"),
        (["rare:1:1", "--sentence", "▁no ▁such", "--dict", "DICT"], "none of the sentence's"),
        (["8l", "--out", "heads.bmp"], "heads.bmp"),
    ],
)
def test_errors_are_one_line(tmp_path, dictionary, arguments, message):
    arguments = [str(dictionary) if a == "DICT" else a for a in arguments]
    if "--out" not in arguments:
        arguments += ["--out", str(tmp_path / "a.png")]
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_file_that_is_no_dictionary(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("▁el 90\nonly_a_symbol\n", encoding="utf-8")
    with pytest.raises(PatternsError, match=r"line 2 of .* 'only_a_symbol'"):
        make_layout(TOKENS, 0, path)
