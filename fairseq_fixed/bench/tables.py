"""Cases as tables: in the terminal while they are measured, and in Markdown from records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairseq_fixed.bench.limits import format_bytes

__all__ = ["case_notes", "case_table", "case_title", "format_ms", "format_ratio", "left_out"]


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
        parts.append(f"padding {100 * case['padding']:.3g}%{side}")
    if "pass" in case:
        parts.append(case["pass"])
    if "target_length" in case:
        parts.append(f"{case['target_length']} tokens written")
    if "beam" in case:
        parts.append(f"beam {case['beam']}")
    if "attention_dropout" in case:
        parts.append(f"attention dropout {case['attention_dropout']:g}")
    parts += [str(case[name]) for name in ("dtype", "device") if name in case]
    return ", ".join(parts)


def case_table(case: Mapping[str, Any], *, spread: bool = True) -> Any:
    """Return a rich table: a line a contender, what it costs and how it compares with ours.

    Args:
        case: of :func:`contest.hold_contest`.
        spread: with quartiles behind the medians of ratios.
    """
    from rich import box
    from rich.table import Table

    ours = [row["contender"] for row in case["rows"] if row["ours"]]
    table = Table(title=case_title(case), title_justify="left", box=box.SIMPLE, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    memory = any(row["peak_extra_bytes"] is not None for row in case["rows"])
    if memory:
        table.add_column("memory", justify="right", no_wrap=True)
    rates = any("sentences_per_second" in row for row in case["rows"])
    if rates:
        table.add_column("sentences/s", justify="right", no_wrap=True)
    for name in ours:
        table.add_column(f"× {name}", justify="right", no_wrap=True)
    ratios = {(ratio["peer"], ratio["ours"]): ratio for ratio in case["ratios"]}
    for row in case["rows"]:
        name = row["contender"]
        cells = [name, format_ms(row["ms"]["median"])]
        if memory:
            extra = row["peak_extra_bytes"]
            cells.append("" if extra is None else format_bytes(extra))
        if rates:
            cells.append(f"{row['sentences_per_second']:.3g}")
        for mine in ours:
            ratio = ratios.get((name, mine))
            cells.append("" if ratio is None else format_ratio(ratio, spread=spread))
        table.add_row(*cells, style="bold" if row["ours"] else None)
    limits = {row["contender"]: row.get("counted_limit") for row in case["rows"] if row["ours"]}
    if any(limits.values()):
        cells = [f"{limit:.2f}" if (limit := limits[name]) else "" for name in ours]
        table.add_row("counted limit", "", *[""] * (memory + rates), *cells, style="italic")
    return table


def case_notes(case: Mapping[str, Any]) -> list[str]:
    """Return what to say below a case's table: savings, and what was left out."""
    notes = []
    for name, saving in case.get("savings", {}).items():
        reached = f", reached {format_ratio(saving['reached'])}" if "reached" in saving else ""
        notes.append(
            f"{name} saves {saving['measured']['median']:.1%} of a step; countable: "
            f"{saving['countable']['median']:.1%}{reached}"
        )
    for note, names in left_out(case["left_out"]).items():
        notes.append(f"left out: {', '.join(names)}: {note}")
    return notes


def left_out(notes: Mapping[str, str]) -> dict[str, list[str]]:
    """Return contenders by the reason for which they are left out."""
    reasons: dict[str, list[str]] = {}
    for name, note in notes.items():
        reasons.setdefault(note, []).append(name)
    return reasons
