"""Speed tables on our pages are what `fairseq-fixed bench report` makes of committed records."""

import re
from pathlib import Path

import pytest

from fairseq_fixed.bench.record import read_record
from fairseq_fixed.bench.report import Chosen, render_records

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"<!-- bench: ([^>]*) -->\n(.*?)<!-- /bench -->", re.DOTALL)


def blocks():
    pages = (ROOT / name for name in ("README.md", "docs/speed.md"))
    return [found for page in pages for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("what", "text"), blocks(), ids=[what for what, _ in blocks()])
def test_tables_are_those_of_the_records(what, text):
    names, _, peers = what.partition(" against ")
    records = [read_record(ROOT / "docs" / "bench" / f"{name}.json") for name in names.split()]
    chosen = Chosen(("7f+1l", "8f", "8xband:8"), tuple(peers.split(",")))
    rendered = render_records(records, chosen=chosen, show=("speed",))
    shown = [line for line in text.splitlines() if line]
    assert shown
    made = rendered.splitlines()
    assert [line for line in shown if line not in made] == []


def test_there_are_tables():
    assert len(blocks()) == 6
