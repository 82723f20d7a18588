"""A benchmark on the terminal: tables on stdout, what is being done on stderr."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

from fairseq_fixed.bench.tables import case_notes, case_table

__all__ = ["Screen"]

#: columns of a table that goes to a file or a pipe
_PLAIN_WIDTH = 200
_PLAIN_INTERVAL = 20.0  # seconds between lines of progress where they cannot be overwritten


class Screen:
    """The listener of the command line."""

    def __init__(self) -> None:
        self.out = Console(highlight=False)
        if not self.out.is_terminal:
            self.out = Console(highlight=False, width=_PLAIN_WIDTH, no_color=True)
        self._progress = Console(stderr=True, highlight=False)
        self._next = time.monotonic() + _PLAIN_INTERVAL
        self._shown = False
        self.cases = 0
        self.total: int | None = None

    def doing(self, text: str) -> None:
        """Show what is being done, on one line that is written over."""
        number = f"case {self.cases + 1}" + (f" of {self.total}" if self.total else "")
        line = f"{number}: {text}"
        if self._progress.is_terminal:
            width = self._progress.width - 1
            self._progress.file.write(f"\r\x1b[K{line[:width]}")
            self._progress.file.flush()
            self._shown = True
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _PLAIN_INTERVAL
            self._progress.print(line, markup=False)

    def clear(self) -> None:
        """Take the progress line away."""
        if self._shown:
            self._progress.file.write("\r\x1b[K")
            self._progress.file.flush()
            self._shown = False

    def finished(self, case: dict[str, Any]) -> None:
        """Print a case's table."""
        self.cases += 1
        self.clear()
        table = case_table(case)
        wide = self.out.options.update(max_width=1000)
        if self.out.measure(table, options=wide).maximum > self.out.width:
            table = case_table(case, spread=False)
        self.out.print(table)
        for note in case_notes(case):
            self.out.print(f"  {note}", markup=False, soft_wrap=True)
