import pytest
from bench_common import make_case, make_record
from matplotlib import image

from fairseq_fixed.bench.curves import families
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.figure import draw_costs
from fairseq_fixed.bench.report import Chosen, render_records
from fairseq_fixed.bench.tables import case_notes, case_table, case_title


def costs(n: int, **more):
    """Ours is linear, a peer quadratic."""
    mine, theirs = n / 64, n * n / 64
    return make_case(
        n,
        {
            "8f": [mine, 2 * mine, 3 * mine],
            "fairseq": [theirs, 2 * theirs, 3 * theirs],
            "dense 8f": [2 * theirs, 4 * theirs, 6 * theirs],
        },
        {"8f"},
        **more,
    )


def rows(text: str) -> dict[str, list[str]]:
    """Cells by the first cell, of all tables."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:1] == "|"]
    return {cells[0]: cells[1:] for cells in lines}


def test_ratios_stand_under_their_lengths():
    text = render_records([make_record("attention", [costs(64), costs(256)])], show=["speed"])
    table = rows(text)
    assert table["times as fast"] == ["n = 64", "n = 256"]
    assert table["8f against fairseq"] == ["64.0 (64.0–64.0)", "256.0 (256.0–256.0)"]
    assert table["8f against dense"] == ["128.0 (128.0–128.0)", "512.0 (512.0–512.0)"]


def test_exponents_are_those_of_the_costs():
    text = render_records(
        [make_record("attention", [costs(n) for n in (64, 512, 1024, 2048)])], fit_from=512
    )
    table = rows(text.split("cost a sentence")[1])
    assert table["8f"] == ["1.00", "1.00"]
    assert table["fairseq"] == ["2.00", "2.00"]


def test_records_of_one_machine_are_shown_together_and_others_apart():
    records = [make_record("attention", [costs(64)]), make_record("attention", [costs(256)])]
    assert render_records(records, show=["speed"]).count("times as fast") == 1
    records[1]["machine"]["processor"] = "another"
    assert render_records(records, show=["speed"]).count("times as fast") == 2


def test_families_differ_in_more_than_their_batches():
    cases = [costs(8), costs(16), costs(8, attention_dropout=0.1), costs(8, dtype="bfloat16")]
    assert [len(family.cases) for family in families(cases)] == [2, 1, 1]


def test_cost_is_a_sentences_and_a_layers():
    curve = families([costs(64)])[0].curves()[0]
    # two milliseconds by the median of rounds, two sentences, two layers
    assert curve.seconds == [pytest.approx(2 * 64 / 64 / 1000 / 4)]
    assert curve.bytes == [pytest.approx(1000 / 2)]


def test_a_mix_of_lengths_is_in_the_table_but_in_no_curve():
    case = make_case("real", {"8f": [1.0], "fairseq": [2.0]}, {"8f"})
    assert "real mix" in render_records([make_record("attention", [case])])
    assert families([case])[0].curves() == []
    with pytest.raises(BenchError, match="no case of one length"):
        draw_costs([case], "unused.png")


def test_contenders_can_be_chosen():
    records = [make_record("attention", [costs(64), costs(256)])]
    table = rows(render_records(records, chosen=Chosen(peers=("dense",)), show=["speed"]))
    assert "8f against dense" in table
    assert "8f against fairseq" not in table
    assert "8f" not in rows(render_records(records, chosen=Chosen(mixes=("7f+1l",))))


def test_what_was_left_out_is_said_once():
    note = {"torch": "too large", "sdpa": "too large"}
    text = render_records([make_record("attention", [costs(64, left_out=note)])])
    assert "- Left out at 64: torch, sdpa: too large." in text.splitlines()
    assert case_notes(costs(64, left_out=note)) == ["left out: torch, sdpa: too large"]


def test_equal_lengths_are_told_apart():
    cases = [costs(64, padding=0.0), costs(64, padding=0.25)]
    header = rows(render_records([make_record("attention", cases)]))["times as fast"]
    assert header == ["n = 64, 64 tokens, padding 0%", "n = 64, 64 tokens, padding 25% left"]


def test_a_step_shows_what_it_saves():
    case = make_case("real", {"8f": [8.0] * 3, "fairseq": [10.0] * 3}, {"8f"}, **{"pass": "step"})
    figure = {"median": 0.2, "q1": 0.19, "q3": 0.21, "min": 0.1, "max": 0.3}
    case["savings"] = {
        "8f": {
            "counted_share": 0.3,
            "counted": 0.15,
            "measured_share": figure,
            "countable": figure,
            "measured": figure,
            "reached": {**figure, "median": 1.0, "q1": 0.95, "q3": 1.05},
        }
    }
    table = rows(render_records([make_record("step", [case])]))
    assert table["8f"] == [
        "64",
        "1.25 (1.25–1.25)",
        "20.0%",
        "20.0%",
        "1.00 (0.95–1.05)",
        "30.0%",
        "15.0%",
    ]
    assert case_notes(case) == [
        "8f saves 20.0% of a step; countable: 20.0%, reached 1.00 (0.95–1.05)"
    ]


def test_the_figure_is_written_and_is_a_picture(tmp_path):
    path = tmp_path / "new" / "costs.png"
    draw_costs([costs(n) for n in (64, 256, 1024)], path, fit_from=64)
    picture = image.imread(path)
    assert picture.shape[0] > 200
    assert picture.std() > 0.01
    assert list(path.parent.iterdir()) == [path]


def test_memory_that_was_not_measured_is_not_drawn(tmp_path):
    cases = [costs(n) for n in (64, 256)]
    for case in cases:
        for row in case["rows"]:
            row["peak_extra_bytes"] = None
    draw_costs(cases, tmp_path / "x.png")
    text = render_records([make_record("attention", cases)], fit_from=64)
    assert rows(text.split("cost a sentence")[1])["8f"] == ["1.00", "–"]
    assert "share of the peer's" not in text


def test_a_terminals_table_has_a_line_a_contender():
    table = case_table(costs(64))
    assert table.row_count == 3
    assert "length 64, 2 sentences, padding 10% left, forward" in case_title(costs(64))
