"""How running stages are going, and the two ways to show it: a live table, or plain lines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fairseq_fixed.experiments import paths
from fairseq_fixed.experiments.plan import Stage
from fairseq_fixed.experiments.stamps import StageState
from fairseq_fixed.experiments.training_log import Tail, TrainingLog

__all__ = ["LiveView", "PlainView", "StageProgress", "View", "format_seconds"]

_WORDING = {
    "done": "{}",
    "tokens/s": "{} tokens/s",
    "loss": "loss {}",
    "valid": "valid loss {}",
    "left": "{} left",
}
_LIVE_COLUMNS = (  # of the live table, the more of them the wider the terminal
    ("bar", "done", "tokens/s", "loss", "valid", "left", "elapsed"),
    ("done", "tokens/s", "loss", "valid", "left"),
    ("done", "valid", "left"),
    ("done", "left"),
    ("left",),
)
_PLAIN_INTERVAL = 20.0  # seconds between a running stage's plain lines
_RATE_WINDOW = 300.0  # seconds whose rate tells the time left: long enough for validations


def format_seconds(seconds: float) -> str:
    """Return `42 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class StageProgress:
    """One running stage, as seen from outside: its log and what it writes."""

    def __init__(self, stage: Stage, folder: Path, *, name: str = "", begun: bool = False):
        """Watch a stage of the run in `folder`; one that has `begun` tells all of its log."""
        self.stage = stage
        self.name = name or stage.name
        self.started = time.monotonic()
        self.log = TrainingLog()
        self.lines = 0
        self.steps = stage.steps or (_lines_to_translate(folder) if stage.watch else None)
        self._begun = begun
        at_end = stage.watch is None and not begun
        self._tail = Tail(folder / (stage.watch or stage.log), at_end=at_end)
        self._seen: deque[tuple[float, int]] = deque()  # when, how many were done: for the rate

    def look(self) -> None:
        """Read what has been added."""
        for line in self._tail.lines():
            if self.stage.watch is not None:
                self.lines += line.startswith("H-")
            elif self.stage.kind == "train":
                self.log.feed(line)
        if self.done and (not self._seen or self.done != self._seen[-1][1]):
            self._seen.append((time.monotonic(), self.done))
        while len(self._seen) > 2 and self._seen[1][0] < time.monotonic() - _RATE_WINDOW:
            self._seen.popleft()

    @property
    def done(self) -> int:
        """Updates, or translated lines, so far."""
        return self.lines if self.stage.watch is not None else self.log.updates

    @property
    def elapsed(self) -> float:
        """Seconds since the (last) start."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float | None:
        """Seconds that the rest will take at the rate of late; None: cannot be told yet.

        Of late alone, so that a pause, or a time in which other work shared the machine, is
        forgotten soon.
        """
        if not self._seen or not self.steps:
            return None
        since, first = self._seen[0]
        seconds, done = time.monotonic() - since, self.done - first
        if not done and self._begun:  # seen once: at the rate since the training's start
            seconds, done = self.log.wall or 0.0, self.log.updates
        if done <= 0 or seconds <= 0:
            return None
        return max(0.0, (self.steps - self.done) * seconds / done)

    def figures(self) -> dict[str, str]:
        """Return what is known as short texts, by column; what is unknown is left out."""
        texts: dict[str, str] = {}
        if self.steps and self.done:
            texts["done"] = f"{min(self.done, self.steps):,}/{self.steps:,}"
        if self.log.train:
            point = self.log.train[max(self.log.train)]
            texts["tokens/s"] = f"{point['wps']:,.0f}" if "wps" in point else ""
            texts["loss"] = f"{point.get('nll_loss', point.get('loss', 0)):.3f}"
        if (valid := self.log.last_valid) is not None:
            texts["valid"] = f"{valid:.3f}"
        if (left := self.left) is not None:
            texts["left"] = format_seconds(left)
        return texts

    def describe(self) -> str:
        """Return the figures as one line of words; empty: nothing is known yet."""
        return ", ".join(_WORDING[key].format(text) for key, text in self.figures().items() if text)


def _lines_to_translate(folder: Path) -> int | None:
    for file in sorted((folder / paths.RAW).glob("test.*")):
        if file.suffix != ".keys":
            with file.open("rb") as lines:
                return sum(1 for _ in lines)
    return None


class View(Protocol):
    """What a runner tells about its work."""

    def open(self, states: Mapping[str, StageState]) -> None:
        """The run begins with stages in these states."""

    def say(self, text: str) -> None:
        """Something worth a line."""

    def started(self, stage: Stage, how: str) -> None:
        """A stage starts; `how` says why it does so again, or nothing."""

    def ended(self, stage: Stage, seconds: float) -> None:
        """A stage has ended well."""

    def update(self, running: Sequence[StageProgress], done: int, total: int) -> None:
        """Called a few times a second."""

    def close(self) -> None:
        """The run is over, well or not."""


class PlainView:
    """One line an event, and one every 20 seconds for each running stage."""

    def __init__(self, write: Any):
        """`write` takes one line."""
        self._write = write
        self._next: dict[str, float] = {}

    def open(self, states: Mapping[str, StageState]) -> None:
        """Say how much there is and how much is done."""
        done = sum(s.state == "done" for s in states.values())
        self.say(f"{len(states)} stages, {done} done already")

    def say(self, text: str) -> None:
        """Write a line."""
        self._write(f"[{time.strftime('%H:%M:%S')}] {text}")

    def started(self, stage: Stage, how: str) -> None:
        """Write that a stage starts."""
        self.say(f"{stage.name}: starts{f' ({how})' if how else ''}")

    def ended(self, stage: Stage, seconds: float) -> None:
        """Write that a stage has ended."""
        self._next.pop(stage.name, None)
        self.say(f"{stage.name}: done in {format_seconds(seconds)}")

    def update(self, running: Sequence[StageProgress], done: int, total: int) -> None:
        """Show how running stages are going."""
        now = time.monotonic()
        for progress in running:
            name = progress.name
            if now < self._next.setdefault(name, now + _PLAIN_INTERVAL):
                continue
            self._next[name] = now + _PLAIN_INTERVAL
            texts = [progress.describe()]
            if progress.left is None:
                texts.append(f"{format_seconds(progress.elapsed)} so far")
            self.say(f"{name}: {', '.join(filter(None, texts))}")

    def close(self) -> None:
        """Do nothing."""


class LiveView:
    """A table of the running stages that redraws itself; finished ones scroll by above it."""

    def __init__(self, console: Any):
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._open = False

    def open(self, states: Mapping[str, StageState]) -> None:
        """Say how much there is and how much is done."""
        done = sum(s.state == "done" for s in states.values())
        self._console.print(f"{len(states)} stages, {done} done already", highlight=False)
        self._live.start()
        self._open = True

    def say(self, text: str) -> None:
        """Write a line."""
        self._console.print(text, highlight=False, markup=False)

    def started(self, stage: Stage, how: str) -> None:
        """Write that a stage starts."""
        if how:
            self.say(f"… {stage.name}: {how}")

    def ended(self, stage: Stage, seconds: float) -> None:
        """Write that a stage has ended."""
        self._console.print(
            f"[green]✓[/green] {stage.name} [dim]{format_seconds(seconds)}[/dim]", highlight=False
        )

    def update(self, running: Sequence[StageProgress], done: int, total: int) -> None:
        """Show how running stages are going."""
        if self._open:
            self._live.update(self._render(running, done, total))

    def _render(self, running: Sequence[StageProgress], done: int, total: int) -> Any:
        """Return the widest table that fits: a cell cut to dots says nothing."""
        from rich.measure import Measurement

        title = f"stage ({done}/{total} done)"
        rows = [(progress.name, self._cells(progress)) for progress in running]
        options = self._console.options.update(max_width=10_000)
        for columns in _LIVE_COLUMNS:
            table = self._table(title, columns, rows)
            if Measurement.get(self._console, options, table).maximum <= self._console.width:
                break
        return table

    def _cells(self, progress: StageProgress) -> dict[str, Any]:
        from rich.progress_bar import ProgressBar

        cells: dict[str, Any] = dict(progress.figures())
        cells["bar"] = ProgressBar(
            total=progress.steps if "done" in cells else None,
            completed=progress.done,
            width=20,
            pulse="done" not in cells,
        )
        cells["elapsed"] = format_seconds(progress.elapsed)
        return cells

    def _table(
        self, title: str, columns: Sequence[str], rows: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> Any:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(title, no_wrap=True)
        for column in columns:
            if column == "bar":
                table.add_column("", width=20)
            else:
                table.add_column(column, justify="right", no_wrap=True)
        for name, cells in rows:
            # without a column of its own, the time so far stands in for that left
            spare = {} if "elapsed" in columns else {"left": f"({cells['elapsed']})"}
            table.add_row(name, *(cells.get(c, spare.get(c, "")) for c in columns))
        return table

    def close(self) -> None:
        """Take the table away."""
        if self._open:
            self._live.stop()
            self._open = False
