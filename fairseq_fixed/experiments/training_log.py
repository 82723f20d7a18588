"""What `fairseq-train --log-format json` has written so far: curves, speed, parameters.

A resumed training repeats updates since its last checkpoint: what was logged of them is forgotten.
fairseq counts the seconds of a training until it is resumed, and writes 0 from then on: there the
log's own times count.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

__all__ = ["Tail", "TrainingLog", "read_training_log"]

_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
_ENDINGS = {
    "Stopping training due to num_updates": "updates",
    "Stopping training due to cumulative_training_time": "hours",
    "early stop since valid performance": "patience",
}
_RESUMED = re.compile(r"Loaded checkpoint .* @ (\d+) updates\)")
_STARTS = ("begin training epoch", "Start iterating over samples")
_SKIPPED = re.compile(r"(\d[\d,]*) samples have invalid sizes and will be skipped")


class Tail:
    """The lines added to a growing text file since the last look. A missing file has none."""

    def __init__(self, path: Path, *, at_end: bool = False):
        """`at_end` starts behind what is there already."""
        self.path = path
        self._rest = b""
        self._offset = 0
        if at_end and path.is_file():
            self._offset = path.stat().st_size

    def lines(self) -> list[str]:
        """Return complete new lines; a half-written last one waits for the next call."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # truncated: a fresh start
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                added = file.read()
                self._offset = file.tell()
        except OSError:
            return []
        *complete, self._rest = (self._rest + added).split(b"\n")
        return [line.decode("utf-8", "replace") for line in complete]


@dataclass
class TrainingLog:
    """The figures of one training.

    Attributes:
        parameters: number of the model's parameters.
        train: by update: `loss` and `nll_loss` (bits a token), `wps` (target tokens a second,
            since the line before), `wall` (seconds of training so far).
        valid: by update: `loss`, `nll_loss` (bits a token), `bleu` where fairseq computes it.
        skipped: sentences that were too long and therefore skipped, by fairseq's account.
        finished: whether fairseq said that it is done.
        ended: what ended it: `updates`, `hours`, `patience`; None: nothing yet.
    """

    parameters: int | None = None
    train: dict[int, dict[str, float]] = field(default_factory=dict)
    valid: dict[int, dict[str, float]] = field(default_factory=dict)
    skipped: int = 0
    finished: bool = False
    ended: str | None = None
    #: of a resumed training: seconds before it, and the time when it went on
    _before: float | None = field(default=None, repr=False)
    _since: datetime | None = field(default=None, repr=False)

    def feed(self, line: str) -> None:
        """Take in one line of the log."""
        parts = line.split(" | ", 3)
        if len(parts) != 4:
            return
        time, _, tag, message = parts
        if tag == "train_inner":
            self._point(self.train, message, "", time)
        elif tag == "valid":
            self._point(self.valid, message, "valid_", time)
        elif tag.startswith("fairseq") or tag.startswith("root"):
            if found := _PARAMETERS.search(message):
                self.parameters = int(found[1].replace(",", ""))
            elif found := _SKIPPED.search(message):
                self.skipped = max(self.skipped, int(found[1].replace(",", "")))
            elif found := _RESUMED.search(message):
                self._go_back(int(found[1]))
            elif message.startswith(_STARTS):
                if self._before is not None and self._since is None:
                    self._since = _read_time(time)
            elif message.startswith("done training"):
                self.finished = True
            else:
                for start, what in _ENDINGS.items():
                    if message.startswith(start):
                        self.ended = what

    def _go_back(self, update: int) -> None:
        """Forget what was trained and lost behind a checkpoint that is loaded again."""
        self.train = {u: point for u, point in self.train.items() if u <= update}
        self.valid = {u: point for u, point in self.valid.items() if u <= update}
        self._before, self._since = self.wall or 0.0, None

    def _point(
        self, points: dict[int, dict[str, float]], message: str, prefix: str, time: str
    ) -> None:
        try:
            stats: dict[str, Any] = json.loads(message)
            update = int(stats[f"{prefix}num_updates"])
            names = ("loss", "nll_loss", "bleu", "wps", "wall", "lr")
            point = {n: float(stats[prefix + n]) for n in names if prefix + n in stats}
        except (ValueError, KeyError, TypeError):
            return
        if prefix and self.train:
            earlier = [u for u in self.train if u <= update]
            point["wall"] = self.train[max(earlier)].get("wall", 0.0) if earlier else 0.0
        elif self._before is not None and self._since is not None:
            now = _read_time(time)
            if now is not None:
                point["wall"] = self._before + max(0.0, (now - self._since).total_seconds())
        points.pop(update, None)
        points[update] = point

    @property
    def updates(self) -> int:
        """The last update that was logged."""
        return max([0, *self.train, *self.valid])

    @property
    def tokens_per_second(self) -> float | None:
        """The median over the log's intervals of target tokens a second, validation left out."""
        speeds = []
        before = 0
        for update, point in sorted(self.train.items()):
            # fairseq's clock runs on while it validates and saves, behind the line of an update.
            if "wps" in point and not any(before <= v < update for v in self.valid):
                speeds.append(point["wps"])
            before = update
        # The first interval holds start-up costs.
        speeds = speeds[1:] or speeds or [p["wps"] for p in self.train.values() if "wps" in p]
        return statistics.median(speeds) if speeds else None

    @property
    def best_valid(self) -> tuple[int, float] | None:
        """The update and value of the lowest validation loss (nll, bits a token)."""
        points = [(p.get("nll_loss", p["loss"]), u) for u, p in self.valid.items() if "loss" in p]
        if not points:
            return None
        loss, update = min(points)
        return update, loss

    @property
    def last_valid(self) -> float | None:
        """The last validation loss (nll, bits a token)."""
        if not self.valid:
            return None
        point = self.valid[max(self.valid)]
        return point.get("nll_loss", point.get("loss"))

    @property
    def wall(self) -> float | None:
        """Seconds of training, resumed parts together, validation and saving included."""
        walls = [p["wall"] for p in self.train.values() if "wall" in p]
        return max(walls, default=None)

    def curve(self) -> list[dict[str, float]]:
        """Return the validation curve: update, loss, nll_loss, wall, bleu where there is one."""
        return [{"update": u, **self.valid[u]} for u in sorted(self.valid)]


def _read_time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None


def read_training_log(path: Path) -> TrainingLog:
    """Return the figures of a whole log."""
    log = TrainingLog()
    tail = Tail(path)
    for line in tail.lines():
        log.feed(line)
    return log
