"""Runs plans: what is not done yet, several stages at once, each in a process of its own.

A stage that fails stops the others of its plan cleanly. Ctrl-C and SIGTERM stop all, and nothing
but the time since a training's last checkpoint is lost; a SIGKILL of this process ends the stages,
too.

Several plans share processors and GPUs. A stage that is the same in two of them (equal command,
inputs and tools: equal hash) runs once, and the other plan gets a copy of what it wrote.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairseq_fixed.experiments import commands, failures
from fairseq_fixed.experiments.errors import StageFailedError
from fairseq_fixed.experiments.plan import NOTHING_LEFT, Plan, Stage
from fairseq_fixed.experiments.process import start, terminate_all
from fairseq_fixed.experiments.progress import StageProgress, View, format_seconds
from fairseq_fixed.experiments.stamps import StageState, Stamps

__all__ = ["Resources", "Task", "Terminated", "run_plan", "run_plans"]

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
        gpus: identifiers for CUDA_VISIBLE_DEVICES; each translation gets one, each training as
            many as it has processes.
    """

    jobs: int = 1
    threads: int = 1
    gpus: tuple[str, ...] = ()

    def devices(self, stage: Stage) -> int:
        """Return on how many GPUs a stage works; without GPUs, in how many processes."""
        if stage.processes == "all":
            return max(1, len(self.gpus))
        return stage.processes


@dataclass
class _Running:
    """A stage under way: its present process and the commands that follow it."""

    stage: Stage
    process: subprocess.Popen
    progress: StageProgress
    rest: deque[tuple[str, ...]] = field(default_factory=deque)
    gpus: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    mending: bool = False
    digest: str = ""


@dataclass(frozen=True)
class Task:
    """A plan and where it runs.

    Attributes:
        plan: the stages.
        folder: the run's folder, which the caller holds (:func:`lock.folder_lock`).
        label: what its stages are called before their names, where there are several plans.
        redo: names of stages to run again even if they are done.
    """

    plan: Plan
    folder: Path
    label: str = ""
    redo: Sequence[str] = ()


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
        folder: as for :class:`Task`.
        view: gets told what happens.
        resources: how many stages at once, and with what.
        redo: as for :class:`Task`.

    Returns:
        How many stages ran.

    Raises:
        StageFailedError: a command failed; the others have been stopped.
        KeyboardInterrupt: Ctrl-C or SIGTERM; all have been stopped.
    """
    ran, failed = run_plans([Task(plan, folder, redo=redo)], view, resources)
    for failure in failed.values():
        raise failure
    return ran


def run_plans(
    tasks: Sequence[Task], view: View, resources: Resources, sources: Sequence[Path] = ()
) -> tuple[int, dict[Path, StageFailedError]]:
    """Run several plans at once, the stages of the first before those of the next.

    Args:
        tasks: the plans and their folders.
        view: gets told what happens.
        resources: of all of them together.
        sources: folders of further runs, from which equal stages are copied, too.

    Returns:
        How many stages ran, and by folder what went wrong. A plan whose stage failed is stopped;
        the others go on.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM; all have been stopped.
    """
    pool = _Pool(resources, [*(task.folder for task in tasks), *sources])
    runners = [_Runner(task, view, pool) for task in tasks]
    failed: dict[Path, StageFailedError] = {}
    with _StopSignals() as signals:
        try:
            states = [runner.begin() for runner in runners]
            view.open({f"{i}.{name}": s for i, each in enumerate(states) for name, s in each})
            going = list(runners)
            while going:
                # All notice first what has ended: the room it leaves is then given out in the
                # plans' order, not to whichever plan comes next.
                for act, runner in itertools.product((_Runner.notice, _Runner.advance), runners):
                    if runner not in going:
                        continue
                    signals.check()
                    try:
                        more = act(runner)
                    except StageFailedError as error:
                        failed[runner.folder] = error
                        if len(runners) > 1:
                            view.say(f"{runner.label}stopped: {failures.in_a_line(error)}")
                        runner.end()
                        more = False
                    if not more:
                        going.remove(runner)
                running = [r.progress for runner in going for r in runner.running]
                done = sum(len(runner.done) for runner in runners)
                view.update(running, done, sum(len(runner.plan) for runner in runners))
                if running:
                    time.sleep(_POLL)
        finally:
            for runner in runners:
                runner.end()
            view.close()
    return sum(runner.ran for runner in runners), failed


class _StopSignals:
    """Notes Ctrl-C, SIGTERM and SIGHUP, to be looked at between two steps.

    Raising from the handler could be lost: Python swallows what is raised during a fork. The second
    signal does raise, for who cannot wait.
    """

    _NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __enter__(self) -> _StopSignals:
        self.number: int | None = None
        # What is ignored already stays so: nohup ignores SIGHUP, a shell's `&` SIGINT.
        heeded = [n for n in self._NUMBERS if signal.getsignal(n) is not signal.SIG_IGN]
        self._before = {n: signal.signal(n, self._note) for n in heeded}
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


class _Pool:
    """What several plans share: room for stages, GPUs, and what equal stages write."""

    def __init__(self, resources: Resources, folders: Sequence[Path]):
        self.resources = resources
        self.free_gpus = list(resources.gpus)
        self.free_jobs = resources.jobs
        self.running: set[tuple[str, str]] = set()  # names and hashes of stages under way
        self.environment = commands.merged(commands.environment(resources.threads))
        self._stamps = [Stamps(folder) for folder in folders]

    def done_elsewhere(self, stage: Stage, digest: str, folder: Path) -> Stamps | None:
        """Return the stamps of another run's folder in which this very stage is done."""
        for stamps in self._stamps:
            if stamps.folder != folder and stamps.holds(stage, digest):
                return stamps
        return None


class _Runner:
    """One plan on its way."""

    def __init__(self, task: Task, view: View, pool: _Pool):
        self.plan = task.plan
        self.folder = task.folder
        self.label = task.label
        self.view = view
        self.pool = pool
        self.resources = pool.resources
        self.stamps = Stamps(task.folder)
        self.done: set[str] = set()
        self.running: list[_Running] = []
        self.ran = 0
        self._waiting: list[Stage] = []
        self._known = -1
        for name in task.redo:
            self.stamps.forget(self.plan[name])

    def begin(self) -> list[tuple[str, StageState]]:
        """Look at what is done, and return each stage's state."""
        (self.folder / "logs").mkdir(exist_ok=True)
        self._waiting = list(self.plan)
        return list(self.stamps.survey(self.plan).items())

    def notice(self) -> bool:
        """Notice what has ended; return whether anything is left to do."""
        self._reap()
        return self._unfinished

    def advance(self) -> bool:
        """Start what can start; return whether anything is left to do."""
        if self._known != len(self.done):
            self._waiting = self._settle(self._waiting)
            self._known = len(self.done)
        self._waiting = self._launch(self._waiting)
        for running in self.running:
            running.progress.look()
        return self._unfinished

    @property
    def _unfinished(self) -> bool:
        return bool(self._waiting or self.running)

    def end(self) -> None:
        """Stop what still runs, and keep what is known."""
        self._stop_all()
        with contextlib.suppress(OSError):  # a full disk must not hide what went wrong
            self.stamps.hashes.save()

    def _shown(self, stage: Stage) -> Stage:
        return replace(stage, name=f"{self.label}{stage.name}") if self.label else stage

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
            if not (self._ready(stage) and self._has_room(stage)):
                left.append(stage)
                continue
            digest = self.stamps.describe(stage)["hash"]
            if (stage.name, digest) in self.pool.running:  # of another plan: wait for it
                left.append(stage)
                continue
            self._keep(stage)
            if source := self.pool.done_elsewhere(stage, digest, self.folder):
                self._adopt(stage, source)
            else:
                self._start(stage, digest)
        return left

    def _has_room(self, stage: Stage) -> bool:
        if self.pool.free_jobs < 1:
            return False
        if not (stage.device and self.resources.gpus):
            return True
        return len(self.pool.free_gpus) >= self.resources.devices(stage)

    def _adopt(self, stage: Stage, source: Stamps) -> None:
        self.stamps.forget(stage)  # before what it vouches for is touched
        self._wipe(stage)
        self.stamps.adopt(stage, source)
        self.done.add(stage.name)
        self.view.say(f"{self.label}{stage.name}: the same as in {source.folder.name}, copied")

    def _start(self, stage: Stage, digest: str) -> None:
        state = self.stamps.state(stage)
        resumes = state.state == "partial"
        how = {"partial": "goes on from its last checkpoint", "stale": f"again: {state.why}"}
        if resumes and state.why:
            how["partial"] += f"; {state.why}"
        if not resumes:
            self.stamps.forget(stage)
            self._wipe(stage)
        self.stamps.start(stage, state.seconds if resumes else 0.0)
        for output in stage.outputs:
            place = self.folder / output
            (place if output.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        todo = deque([stage.command])
        if resumes and stage.before_resume:
            todo.appendleft(stage.before_resume)
        env = dict(self.pool.environment)
        gpus: tuple[str, ...] = ()
        if self.resources.gpus:
            if stage.device:
                count = self.resources.devices(stage)
                gpus = tuple(self.pool.free_gpus[:count])
                del self.pool.free_gpus[:count]
            env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        progress = StageProgress(stage, self.folder, name=self.label + stage.name)
        argv = todo.popleft()
        self.running.append(
            _Running(
                stage,
                self._spawn(argv, stage, env),
                progress,
                todo,
                gpus,
                env,
                mending=argv is stage.before_resume,
                digest=digest,
            )
        )
        self.pool.free_jobs -= 1
        self.pool.running.add((stage.name, digest))
        self.ran += 1
        self.view.started(self._shown(stage), how.get(state.state, ""))

    def _keep(self, stage: Stage) -> None:
        """Refuse to replace a training, finished or long under way, because settings have changed.

        Everything else is quickly made again; hours of training are not thrown away unasked.
        """
        if not stage.resumable:
            return
        state = self.stamps.state(stage)
        if state.state == "stale" and (spent := self.stamps.invested(stage)) is not None:
            raise StageFailedError(
                f"{stage.name} has been trained already ({format_seconds(spent)}), with other "
                f"settings: {state.why}. It is kept, and goes on from there with the old ones. To "
                "train with the new ones beside it, give them a folder of their own: out=FOLDER. "
                "To train it again in its place: "
                f"--redo {stage.kind} (all of them), or --redo {stage.name}"
            )

    def _spawn(self, argv: tuple[str, ...], stage: Stage, env: dict[str, str]) -> subprocess.Popen:
        words = commands.expand(argv, self.resources.devices(stage))
        return start(words, self.folder, self.folder / stage.log, env)

    def _wipe(self, stage: Stage) -> None:
        for output in (*stage.outputs, *stage.traces, stage.log):
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
        self.view.ended(self._shown(stage), running.progress.elapsed)

    def _release(self, running: _Running) -> None:
        self.running.remove(running)
        self.pool.running.discard((running.stage.name, running.digest))
        self.pool.free_jobs += 1
        self.pool.free_gpus += running.gpus

    def _fail(self, running: _Running, status: int) -> None:
        with contextlib.suppress(OSError):
            self.stamps.spend(running.stage, running.progress.elapsed)
        self._release(running)
        raise StageFailedError(failures.describe(running.stage, self.folder, status))

    def _stop_all(self) -> None:
        terminate_all([r.process for r in self.running])
        for running in list(self.running):
            with contextlib.suppress(OSError):
                self.stamps.spend(running.stage, running.progress.elapsed)
            self._release(running)
