"""How tables call things, and how they are written in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["METRIC_NAMES", "is_spaceless", "main_language", "markdown_table"]

METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++", "ter": "TER", "comet": "COMET"}


def main_language(code: str) -> str:
    """Return a language's code without its region: `zh` of `zh_CN`."""
    return code.partition("_")[0].lower()


def is_spaceless(code: str) -> bool:
    """Return whether a language has no spaces between words, nor between sentences."""
    return main_language(code) in ("ja", "zh")


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True
) -> list[str]:
    """Return the lines of a Markdown table.

    Args:
        header: the columns' names.
        rows: their cells.
        numbers: whether all columns but the first are aligned at the right.
    """

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    marks = ["---", *["---:" if numbers else "---"] * (len(header) - 1)]
    return [line(header), line(marks), *(line(row) for row in rows)]
