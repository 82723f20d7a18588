"""Cases as tables: in the terminal while they are measured, and in Markdown from records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairseq_fixed.bench.limits import format_bytes

__all__ = ["case_table", "case_title", "format_ms", "format_ratio"]


def format_ms(value: float) -> str:
    """Return milliseconds to three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_ratio(ratio: Mapping[str, float], *, spread: bool = True) -> str:
    """Return `1.82 (1.79–1.86)`: a median and its quartiles."""
    digits = 1 if ratio["median"] >= 20 else 2
    text = f"{ratio['median']:.{digits}f}"
    if spread:
        text += f" ({ratio['q1']:.{digits}f}–{ratio['q3']:.{digits}f})"
    return text


def case_title(case: Mapping[str, Any]) -> str:
    """Return a line that says what a case is."""
    parts = [f"length {case['length']}"] if "length" in case else []
    if "longest" in case and case["length"] == "real":
        parts[-1] += f" (up to {case['longest']})"
    if "sentences" in case:
        batches = f" in {case['batches']} batches" if case.get("batches", 1) > 1 else ""
        parts.append(f"{case['sentences']:,} sentences{batches}")
    if "padding" in case:
        side = f" {case['side']}" if case["padding"] else ""
        parts.append(f"padding {case['padding']:.0%}{side}")
    if "pass" in case:
        parts.append(case["pass"])
    if "attention_dropout" in case:
        parts.append(f"attention dropout {case['attention_dropout']:g}")
    parts += [str(case[name]) for name in ("dtype", "device") if name in case]
    return ", ".join(parts)


def case_table(case: Mapping[str, Any]) -> Any:
    """Return a rich table: a line a contender, what it costs and how it compares with ours."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    ours = [row["contender"] for row in case["rows"] if row["ours"]]
    table = Table(title=case_title(case), title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    memory = any(row["peak_extra_bytes"] is not None for row in case["rows"])
    if memory:
        table.add_column("memory", justify="right", no_wrap=True)
    for name in ours:
        table.add_column(f"× {name}", justify="right", no_wrap=True)
    ratios = {(ratio["peer"], ratio["ours"]): ratio for ratio in case["ratios"]}
    for row in case["rows"]:
        name = row["contender"]
        cells = [name, format_ms(row["ms"]["median"])]
        if memory:
            extra = row["peak_extra_bytes"]
            cells.append("" if extra is None else format_bytes(extra))
        for mine in ours:
            ratio = ratios.get((name, mine))
            cells.append("" if ratio is None else format_ratio(ratio))
        table.add_row(*cells, style="bold" if row["ours"] else None)
    for name, note in case["left_out"].items():
        table.add_row(f"{name}: left out", style="dim")
        table.add_row(f"  {escape(note)}", style="dim")
    return table
