"""A finished run's table and a few translations on the terminal."""

from __future__ import annotations

from pathlib import Path

from fairseq_fixed.experiments import paths
from fairseq_fixed.experiments.differences import mark
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.names import is_spaceless
from fairseq_fixed.experiments.stamps import read_json
from fairseq_fixed.experiments.tables import difference_lines, notes, table

__all__ = ["show"]

_SHOWN = 3  # translations


def show(folder: Path) -> None:
    """Print the report of a run's folder.

    Raises:
        ExperimentError: there is none.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    place = folder / paths.REPORT
    report = read_json(place / "report.json")
    if report is None:
        raise ExperimentError(f"there is no report in {place}: the run is not finished")
    console = Console(highlight=False)
    header, rows = table(report, differences=False)
    title = escape(f"{report['recipe']} ({report['pair']})")
    grid = Table(title=title, title_justify="left")
    for i, name in enumerate(header):
        grid.add_column(name, justify="left" if i == 0 else "right", no_wrap=i > 0)
    for row in rows:
        grid.add_row(*map(escape, row))
    console.print()
    # a table too wide for the terminal is better than one with its words cut off
    width = Measurement.get(console, console.options.update(width=1000), grid).maximum
    Console(highlight=False, width=max(width, console.width)).print(grid)
    for line in difference_lines(report):
        console.print(line, markup=False)
    for note in notes(report):
        console.print(f"- {note}".replace("\\*", "*"), markup=False)
    characters = is_spaceless(report["pair"].split("-")[-1])
    for sample in report["samples"][:_SHOWN]:
        console.print()
        console.print(sample["key"] or f"line {sample['line']}", markup=False)
        width = max(len(n) for n in ("reference", *sample["systems"]))
        reference = sample["reference"]
        for name, text in (("source", sample["source"]), ("reference", reference)):
            console.print(f"  {name:{width}}  {text or '(empty)'}", markup=False)
        for name, text in sample["systems"].items():
            marked = Text(f"  {name:{width}}  ")
            for piece, differs in mark(text or "(empty)", reference, characters=characters):
                marked.append(piece, style="bold" if differs else "")
            console.print(marked)
    console.print()
    console.print(f"Report: {place / 'report.md'}", markup=False, soft_wrap=True)
