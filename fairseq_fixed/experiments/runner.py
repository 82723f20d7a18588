"""Runs a plan: what is not done yet, several stages at once, each in a process of its own.

A stage that fails stops the others cleanly. Ctrl-C and SIGTERM do the same, and nothing but the
time since a training's last checkpoint is lost; a SIGKILL of this process ends the stages, too.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairseq_fixed.experiments import commands, failures
from fairseq_fixed.experiments.errors import StageFailedError
from fairseq_fixed.experiments.plan import Plan, Stage
from fairseq_fixed.experiments.process import start, terminate_all
from fairseq_fixed.experiments.progress import StageProgress, View
from fairseq_fixed.experiments.stamps import Stamps

__all__ = ["NOTHING_LEFT", "Resources", "Terminated", "run_plan"]

NOTHING_LEFT = 3  # exit status of `before_resume`: the stage had ended, only its stamp is missing
_POLL = 0.1  # seconds


class Terminated(KeyboardInterrupt):
    """A signal that asks us to stop; Ctrl-C's companion."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass(frozen=True)
class Resources:
    """What the stages of a run may use.

    Attributes:
        jobs: stages at once.
        threads: CPU threads of each.
        gpus: identifiers for CUDA_VISIBLE_DEVICES; each training or translation gets one.
    """

    jobs: int = 1
    threads: int = 1
    gpus: tuple[str, ...] = ()


@dataclass
class _Running:
    """A stage under way: its present process and the commands that follow it."""

    stage: Stage
    process: subprocess.Popen
    progress: StageProgress
    rest: deque[tuple[str, ...]] = field(default_factory=deque)
    gpu: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    mending: bool = False


def run_plan(
    plan: Plan,
    folder: Path,
    view: View,
    resources: Resources,
    redo: Sequence[str] = (),
) -> int:
    """Run what is not done yet.

    Args:
        plan: the stages.
        folder: the run's folder, which the caller holds (:func:`lock.folder_lock`).
        view: gets told what happens.
        resources: how many stages at once, and with what.
        redo: names of stages to run again even if they are done.

    Returns:
        How many stages ran.

    Raises:
        StageFailedError: a command failed; the others have been stopped.
        KeyboardInterrupt: Ctrl-C or SIGTERM; all have been stopped.
    """
    runner = _Runner(plan, folder, view, resources)
    for name in redo:
        runner.stamps.forget(plan[name])
    with _StopSignals() as signals:
        try:
            return runner.run(signals)
        finally:
            view.close()


class _StopSignals:
    """Notes Ctrl-C, SIGTERM and SIGHUP, to be looked at between two steps.

    Raising from the handler could be lost: Python swallows what is raised during a fork. The second
    signal does raise, for who cannot wait.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> _StopSignals:
        self.number: int | None = None
        self._before = {n: signal.signal(n, self._note) for n in self._NUMBERS}
        return self

    def _note(self, number: int, frame: object) -> None:
        if self.number is not None:
            raise Terminated(self.number)
        self.number = number

    def check(self) -> None:
        """Raise `Terminated` if a signal has come."""
        if self.number is not None:
            raise Terminated(self.number)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Runner:
    def __init__(self, plan: Plan, folder: Path, view: View, resources: Resources):
        self.plan = plan
        self.folder = folder
        self.view = view
        self.resources = resources
        self.stamps = Stamps(folder)
        self.done: set[str] = set()
        self.running: list[_Running] = []
        self.ran = 0
        self.free_gpus = list(resources.gpus)
        self.environment = commands.merged(commands.environment(resources.threads))

    def run(self, signals: _StopSignals) -> int:
        (self.folder / "logs").mkdir(exist_ok=True)
        waiting = list(self.plan)
        try:
            self.view.open(self.stamps.survey(self.plan))
            known = -1
            while waiting or self.running:
                signals.check()
                if known != len(self.done):
                    waiting = self._settle(waiting)
                    known = len(self.done)
                waiting = self._launch(waiting)
                self._reap()
                progress = [r.progress for r in self.running]
                for one in progress:
                    one.look()
                self.view.update(progress, len(self.done), len(self.plan))
                if self.running:
                    time.sleep(_POLL)
        finally:
            self._stop_all()
            with contextlib.suppress(OSError):  # a full disk must not hide what went wrong
                self.stamps.hashes.save()
        return self.ran

    def _ready(self, stage: Stage) -> bool:
        return all(need in self.done for need in self.plan.needs(stage))

    def _settle(self, waiting: list[Stage]) -> list[Stage]:
        """Tick off what is done already, which may make more of it ready."""
        left = []
        for stage in waiting:  # in the plan's order, so that one pass is enough
            if self._ready(stage) and self.stamps.state(stage).state == "done":
                self.done.add(stage.name)
            else:
                left.append(stage)
        return left

    def _launch(self, waiting: list[Stage]) -> list[Stage]:
        left = []
        for stage in waiting:
            if self._ready(stage) and self._has_room(stage):
                self._start(stage)
            else:
                left.append(stage)
        return left

    def _has_room(self, stage: Stage) -> bool:
        if len(self.running) >= self.resources.jobs:
            return False
        return bool(self.free_gpus) or not (stage.device and self.resources.gpus)

    def _start(self, stage: Stage) -> None:
        state = self.stamps.state(stage)
        resumes = state.state == "partial"
        how = {"partial": "goes on from its last checkpoint", "stale": f"again: {state.why}"}
        if resumes and state.why:
            how["partial"] += f"; {state.why}"
        if not resumes:
            self._wipe(stage)
        self.stamps.start(stage, state.seconds if resumes else 0.0)
        for output in stage.outputs:
            place = self.folder / output
            (place if output.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        todo = deque([stage.argv])
        if resumes and stage.before_resume:
            todo.appendleft(stage.before_resume)
        env = dict(self.environment)
        gpu = self.free_gpus.pop(0) if stage.device and self.free_gpus else None
        if gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = gpu
        elif self.resources.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ""
        progress = StageProgress(stage, self.folder, self._lines_to_translate(stage))
        argv = todo.popleft()
        self.running.append(
            _Running(
                stage,
                self._spawn(argv, stage, env),
                progress,
                todo,
                gpu,
                env,
                mending=argv is stage.before_resume,
            )
        )
        self.ran += 1
        self.view.started(stage, how.get(state.state, ""))

    def _spawn(self, argv: tuple[str, ...], stage: Stage, env: dict[str, str]) -> subprocess.Popen:
        return start(commands.expand(argv), self.folder, self.folder / stage.log, env)

    def _lines_to_translate(self, stage: Stage) -> int | None:
        if stage.watch is None:
            return None
        from fairseq_fixed.experiments import paths

        for file in sorted((self.folder / paths.RAW).glob("test.*")):
            if file.suffix != ".keys":
                with file.open("rb") as lines:
                    return sum(1 for _ in lines)
        return None

    def _wipe(self, stage: Stage) -> None:
        for output in (*stage.outputs, stage.log):
            path = self.folder / output
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _reap(self) -> None:
        for running in list(self.running):
            status = running.process.poll()
            if status is None:
                continue
            over = running.mending and status == NOTHING_LEFT
            if status and not over:
                self._fail(running, status)
            if running.rest and not over:
                running.process = self._spawn(running.rest.popleft(), running.stage, running.env)
                running.mending = False
                continue
            self._finish(running)

    def _finish(self, running: _Running) -> None:
        stage = running.stage
        missing = [o for o in stage.outputs if not (self.folder / o).exists()]
        if missing:
            raise StageFailedError(
                f"{stage.name} ended without an error, but did not write {', '.join(missing)}; "
                f"its log: {self.folder / stage.log}"
            )
        self.stamps.finish(stage, running.progress.elapsed)
        self._release(running)
        self.done.add(stage.name)
        self.view.ended(stage, running.progress.elapsed)

    def _release(self, running: _Running) -> None:
        self.running.remove(running)
        if running.gpu is not None:
            self.free_gpus.append(running.gpu)

    def _fail(self, running: _Running, status: int) -> None:
        with contextlib.suppress(OSError):
            self.stamps.spend(running.stage, running.progress.elapsed)
        self._release(running)
        raise StageFailedError(failures.describe(running.stage, self.folder, status))

    def _stop_all(self) -> None:
        terminate_all([r.process for r in self.running])
        for running in self.running:
            with contextlib.suppress(OSError):
                self.stamps.spend(running.stage, running.progress.elapsed)
        self.running.clear()
