"""One run of an experiment in its folder: held, written down, run, copied to the results."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_fixed.experiments import commands, machine, paths
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.lock import folder_lock
from fairseq_fixed.experiments.plan import Plan
from fairseq_fixed.experiments.progress import View
from fairseq_fixed.experiments.recipe import Experiment, dump
from fairseq_fixed.experiments.results import collect_results
from fairseq_fixed.experiments.runner import Resources, Task, run_plan
from fairseq_fixed.experiments.script import render_record
from fairseq_fixed.experiments.stages import compile_plan
from fairseq_fixed.experiments.stamps import write_text

__all__ = [
    "check_devices",
    "check_programs",
    "choose_resources",
    "copy_results",
    "explained",
    "open_run",
    "run_folder",
    "run_session",
]

logger = logging.getLogger(__name__)


def run_folder(experiment: Experiment) -> Path:
    """Return the run's folder, absolute: `out`, or `runs/NAME` where the user is."""
    return Path(experiment.recipe.out or f"runs/{experiment.name}").expanduser().absolute()


def choose_resources(experiment: Experiment, runs: int = 1) -> Resources:
    """Return how many stages run at once and with what, from the recipe and the machine.

    Args:
        experiment: the recipe.
        runs: how many runs like it share the machine.

    Raises:
        ExperimentError: a training needs more GPUs than there are, or fp16 and there is none.
    """
    recipe = experiment.recipe
    cores = machine.available_cores()
    trainings = runs * len(experiment.systems) * len(recipe.seeds)
    gpus = machine.visible_gpus()
    each = recipe.train.processes
    check_devices(experiment, gpus)
    if gpus:
        jobs = recipe.jobs or len(gpus)
        return Resources(jobs, recipe.threads or max(1, cores // jobs), gpus)
    each = 1 if each == "all" else each
    cores = max(1, cores // each)
    threads = recipe.threads or max(1, cores // min(trainings, recipe.jobs or cores))
    return Resources(recipe.jobs or max(1, cores // threads), threads)


def check_devices(experiment: Experiment, gpus: Sequence[str]) -> None:
    """Check that the machine has the GPUs that a recipe's trainings need.

    Raises:
        ExperimentError: a training needs more GPUs than there are, or fp16 and there is none.
    """
    train = experiment.recipe.train
    if gpus and train.processes != "all" and train.processes > len(gpus):
        raise ExperimentError(
            f"train.processes = {train.processes}, but {len(gpus)} GPUs are visible; `all` takes "
            "what there is"
        )
    if not gpus and train.precision == "fp16":
        raise ExperimentError(
            "train.precision=fp16 needs a GPU, and none is seen here; fp32 and bf16 train on a CPU"
        )


def check_programs(plan: Plan, resources: Resources) -> None:
    """Check that every command could be started, before the first one is.

    Raises:
        ExperimentError: a program is missing, or the GPUs cannot share an update's batches.
    """
    for stage in plan:
        commands.expand(stage.argv, resources.devices(stage))


def open_run(
    experiment: Experiment,
    folder: Path,
    resources: Resources,
    *,
    label: str = "",
    redo: Sequence[str] = (),
) -> Task:
    """Write a run's recipe and commands into its folder, which the caller holds.

    Args:
        experiment: what to run.
        folder: where.
        resources: what it may use.
        label: what its stages are called before their names.
        redo: stages to run again, by name or by kind (`train`).

    Returns:
        What :func:`runner.run_plans` takes.
    """
    plan = compile_plan(experiment)
    again = _select(plan, redo)
    write_text(folder / paths.RECIPE, dump(experiment))
    commands_file = folder / paths.COMMANDS
    write_text(commands_file, render_record(experiment, plan, resources.threads))
    commands_file.chmod(0o755)
    return Task(plan, folder, label, again)


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn an error of the file system into one that says what to do.

    Raises:
        ExperimentError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        raise ExperimentError(
            f"cannot go on: {place}: {error.strerror or error}. Free some space or make the "
            "folder writable, then start the same command again; finished stages are kept"
        ) from error


def run_session(experiment: Experiment, folder: Path, view: View, redo: Sequence[str] = ()) -> int:
    """Run what is not done yet of an experiment.

    Args:
        experiment: what to run.
        folder: where; made if it is missing.
        view: gets told what happens.
        redo: as for :func:`open_run`.

    Returns:
        How many stages ran; 0: all was done.

    Raises:
        FolderInUseError: another run is under way there.
        ExperimentError: a program is missing, the folder cannot be written, or a stage failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    plan = compile_plan(experiment)
    _select(plan, redo)
    resources = choose_resources(experiment)
    check_programs(plan, resources)
    with folder_lock(folder):
        with explained(folder):
            task = open_run(experiment, folder, resources, redo=redo)
            ran = run_plan(task.plan, folder, view, resources, task.redo)
        copy_results(experiment, folder)
    return ran


def copy_results(experiment: Experiment, folder: Path) -> None:
    """Copy a run's results to where its recipe wants them, if it does."""
    if experiment.recipe.results:
        target = Path(experiment.recipe.results).expanduser().absolute()
        written = collect_results(experiment, folder, target)
        logger.info("%d results copied to %s", len(written), experiment.recipe.results)


def _select(plan: Plan, names: Sequence[str]) -> list[str]:
    chosen = []
    for name in names:
        found = [s.name for s in plan if s.name == name or s.kind == name]
        if not found:
            kinds = dict.fromkeys(s.kind for s in plan)
            raise ExperimentError(
                f"there is no stage {name!r} to redo; kinds: {', '.join(kinds)}; "
                "fairseq-fixed status lists all names"
            )
        chosen += found
    return chosen
