"""docs/speed.md states what the committed records hold, and calls a miss a miss."""

import re
from pathlib import Path

import pytest

from fairseq_fixed.bench.record import read_record
from fairseq_fixed.bench.tables import format_ratio

ROOT = Path(__file__).parents[3]
NAMES = ("attention", "attention_dropout", "attention_4096")


def rows():
    text = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- goals -->(.*?)<!-- /goals -->", text, re.DOTALL)
    lines = [line for line in block.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def case_of(dropout: float, n: int):
    cases = [c for name in NAMES for c in read_record(ROOT / f"docs/bench/{name}.json")["cases"]]
    wanted = (n, dropout, "forward+backward")
    (case,) = [c for c in cases if (c["length"], c["attention_dropout"], c["pass"]) == wanted]
    return case


@pytest.mark.parametrize("row", rows(), ids=" ".join)
def test_a_goal_is_shown_beside_what_was_measured(row):
    mix, peer, dropout, n, limit, goal, measured, verdict = row
    mix, n = mix.strip("`"), int(n.replace(",", ""))
    case = case_of(float(dropout), n)
    (ratio,) = [r for r in case["ratios"] if (r["ours"], r["peer"]) == (mix, peer)]
    (counted,) = [r["counted_limit"] for r in case["rows"] if r["contender"] == mix]
    assert measured == format_ratio(ratio)
    assert float(limit) == pytest.approx(counted, abs=0.005)
    reached = float(measured.split()[0]) >= float(goal)
    assert verdict.split(",")[0] == ("reached" if reached else "missed")
    if peer == "sdpa":
        assert float(goal) == pytest.approx(0.95 * counted, abs=0.006)
        share = float(verdict.split(",")[1].split()[0])
        assert share == pytest.approx(ratio["median"] / counted, abs=0.0051)


def test_every_goal_is_there():
    assert len(rows()) == 21
