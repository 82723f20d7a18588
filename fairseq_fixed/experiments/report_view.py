"""A finished run's table and a few translations on the terminal."""

from __future__ import annotations

from pathlib import Path

from fairseq_fixed.experiments import paths
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.report import difference_lines, notes, table
from fairseq_fixed.experiments.stamps import read_json

__all__ = ["show"]

_SHOWN = 3  # translations


def show(folder: Path) -> None:
    """Print the report of a run's folder.

    Raises:
        ExperimentError: there is none.
    """
    from rich.console import Console
    from rich.table import Table

    place = folder / paths.REPORT
    report = read_json(place / "report.json")
    if report is None:
        raise ExperimentError(f"there is no report in {place}: the run is not finished")
    console = Console(highlight=False)
    header, rows = table(report, differences=False)
    grid = Table(title=f"{report['recipe']} ({report['pair']})", title_justify="left")
    for i, name in enumerate(header):
        grid.add_column(name, justify="left" if i == 0 else "right", no_wrap=i > 0)
    for row in rows:
        grid.add_row(*row)
    console.print()
    console.print(grid)
    for line in difference_lines(report):
        console.print(line, markup=False)
    for note in notes(report):
        console.print(f"- {note}".replace("\\*", "*"), markup=False)
    for sample in report["samples"][:_SHOWN]:
        console.print()
        console.print(sample["key"] or f"line {sample['line']}", markup=False)
        width = max(len(n) for n in ("reference", *sample["systems"]))
        for name, text in (
            ("source", sample["source"]),
            ("reference", sample["reference"]),
            *sample["systems"].items(),
        ):
            console.print(f"  {name:{width}}  {text or '(empty)'}", markup=False)
    console.print()
    console.print(f"Report: {place / 'report.md'}", markup=False, soft_wrap=True)
