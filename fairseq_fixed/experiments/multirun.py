"""Runs the points of a sweep, each in a folder of its own, all from one pool of processors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_fixed.experiments import paths
from fairseq_fixed.experiments.errors import StageFailedError
from fairseq_fixed.experiments.lock import folder_lock, holder
from fairseq_fixed.experiments.progress import View
from fairseq_fixed.experiments.recipe import quoted, read
from fairseq_fixed.experiments.runner import run_plans
from fairseq_fixed.experiments.session import (
    check_devices,
    check_programs,
    choose_resources,
    explained,
    open_run,
)
from fairseq_fixed.experiments.stages import compile_plan
from fairseq_fixed.experiments.stamps import Stamps
from fairseq_fixed.experiments.sweep import NO_SWEEP, Point, Sweep

__all__ = ["point_command", "points_in", "run_sweep", "survey"]

logger = logging.getLogger(__name__)


def point_command(sweep: Sweep, point: Point) -> list[str]:
    """Return the words behind `fairseq-fixed` that run one point by itself, from anywhere."""
    recipe = sweep.recipe
    if recipe.endswith((".yaml", ".yml")):
        recipe = str(Path(recipe).absolute())
    out = quoted(str(sweep.folder / point.name))
    return ["run", recipe, *point.overrides, NO_SWEEP, f"out={out}"]


def points_in(folder: Path) -> list[Path]:
    """Return the runs' folders in a sweep's folder; none in that of a single run."""
    if (folder / paths.RECIPE).exists():
        return []
    return sorted(file.parent for file in folder.glob(f"*/{paths.RECIPE}"))


def survey(folders: Sequence[Path]) -> Iterator[str]:
    """Yield a line a run: how many of its stages are done, and who is at it."""
    for folder in folders:
        plan = compile_plan(read(folder))
        states = Stamps(folder.absolute()).survey(plan, save=False)
        done = sum(state.state == "done" for state in states.values())
        process = holder(folder)
        owner = f", run by process {process}" if process is not None else ""
        yield f"{folder.name}: {done} of {len(plan)} stages done{owner}"


def run_sweep(
    sweep: Sweep, view: View, redo: Sequence[str] = ()
) -> tuple[int, dict[Path, StageFailedError]]:
    """Run what is not done yet of a sweep's points.

    Stages that points have in common (the corpus, the baseline) run once: the other points get
    copies, and so they do of what the recipe's own run has done already.

    Args:
        sweep: the points.
        view: gets told what happens.
        redo: stages to run again at all points, by name or by kind.

    Returns:
        How many stages ran, and by folder what went wrong at a point.

    Raises:
        FolderInUseError: another run is under way in a point's folder.
        ExperimentError: a program is missing, or a folder cannot be written.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    first = sweep.points[0].experiment
    resources = choose_resources(first, runs=len(sweep.points))
    for point in sweep.points:
        check_devices(point.experiment, resources.gpus)
        check_programs(compile_plan(point.experiment), resources)
    # what is to be made again must not be taken from an earlier run
    sources = [sweep.base] if (sweep.base / paths.RECIPE).is_file() and not redo else []
    with contextlib.ExitStack() as stack, explained(sweep.folder):
        tasks = []
        for point in sweep.points:
            folder = sweep.folder / point.name
            stack.enter_context(folder_lock(folder))
            tasks.append(
                open_run(point.experiment, folder, resources, label=f"{point.name}: ", redo=redo)
            )
        return run_plans(tasks, view, resources, sources)
