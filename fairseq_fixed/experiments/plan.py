"""Stages and plans: what runs, what it reads, what it writes. No knowledge of translation here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["NOTHING_LEFT", "Plan", "Stage"]

NOTHING_LEFT = 3  # exit status of `before_resume`: the stage had ended, only its stamp is missing


@dataclass(frozen=True)
class Stage:
    """One command.

    Attributes:
        name: unique in the plan; names the log and the stamp, so a slug.
        argv: the command, run in the run's folder. `{plugin}` and `{data}` stand for the package's
            folder and that of the corpus builders, so that a stamp outlives a move of the clone;
            `{devices}` for the number of GPUs that the stage works on, `{update_freq:8}` for its
            share of 8 batches, so that a stamp outlives a change of machine.
        inputs: files read, relative to the run's folder or absolute. A stage needs every stage
            that writes one of them.
        outputs: files written, and folders (ending in `/`), which are wiped before a fresh start.
        tools: distributions whose version decides the result.
        resumable: whether the command, started again, goes on from what it left.
        before_resume: a command that runs before a resumed start. Its exit status 3 says that
            there is nothing left to do.
        grows: an option of the command whose number may be raised without starting afresh.
        device: whether the command uses a GPU where there is one.
        processes: of such a command, a GPU each; `all`: every GPU there is.
        steps: how many updates or lines the command works through, for the progress view.
        watch: file to read the progress from, where it is not the log.
        logging: options that the command gets, too, which decide nothing of its result: they are
            in no stamp, so that a finished stage is not run again for them.
        traces: folders that these options make the command write; wiped with the outputs, and
            missed by nobody.
    """

    name: str
    argv: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    resumable: bool = False
    before_resume: tuple[str, ...] = ()
    grows: str | None = None
    device: bool = False
    processes: int | Literal["all"] = 1
    steps: int | None = None
    watch: str | None = None
    logging: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The whole command, with the options that decide nothing."""
        return (*self.argv, *self.logging)

    @property
    def log(self) -> str:
        """The log file, relative to the run's folder."""
        return f"logs/{self.name}.log"

    @property
    def kind(self) -> str:
        """The first part of the name: `train` of `train.7f-1l.seed1`."""
        return self.name.split(".")[0]


class Plan:
    """Stages in an order in which they could run one after the other."""

    def __init__(self, stages: Sequence[Stage]):
        """Check names and order.

        Raises:
            ValueError: a name or an output is there twice, or a stage reads what a later one
                writes.
        """
        self.stages = tuple(stages)
        self._needs: dict[str, tuple[str, ...]] = {}
        written: dict[str, str] = {}
        later = [(o, s.name) for s in self.stages for o in s.outputs]
        for stage in self.stages:
            if stage.name in self._needs:
                raise ValueError(f"two stages are named {stage.name!r}")
            needs = []
            for path in stage.inputs:
                writer = _writer(path, written)
                if writer is None and _writer(path, dict(later)) is not None:
                    raise ValueError(f"{stage.name!r} reads {path!r}, written by a later stage")
                if writer is not None and writer not in needs:
                    needs.append(writer)
            self._needs[stage.name] = tuple(needs)
            for path in stage.outputs:
                if path in written:
                    raise ValueError(f"{written[path]!r} and {stage.name!r} both write {path!r}")
                written[path] = stage.name

    def __iter__(self):
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, name: str) -> Stage:
        return next(s for s in self.stages if s.name == name)

    def needs(self, stage: Stage) -> tuple[str, ...]:
        """Return the names of the stages that must be done before `stage` can start."""
        return self._needs[stage.name]


def _writer(path: str, written: dict[str, str]) -> str | None:
    if path in written:
        return written[path]
    folders = (o for o in written if o.endswith("/") and path.startswith(o))
    longest = max(folders, key=len, default=None)
    return None if longest is None else written[longest]
