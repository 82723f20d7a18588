"""One run of an experiment in its folder: held, written down, run, copied to the results."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fairseq_fixed.experiments import commands, machine, paths
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.lock import folder_lock
from fairseq_fixed.experiments.plan import Plan
from fairseq_fixed.experiments.progress import View
from fairseq_fixed.experiments.recipe import Experiment, dump
from fairseq_fixed.experiments.results import collect_results
from fairseq_fixed.experiments.runner import Resources, run_plan
from fairseq_fixed.experiments.stages import compile_plan
from fairseq_fixed.experiments.stamps import write_text

__all__ = ["choose_resources", "run_folder", "run_session", "script"]

logger = logging.getLogger(__name__)


def run_folder(experiment: Experiment) -> Path:
    """Return the run's folder, absolute: `out`, or `runs/NAME` where the user is."""
    return Path(experiment.recipe.out or f"runs/{experiment.name}").expanduser().absolute()


def choose_resources(experiment: Experiment) -> Resources:
    """Return how many stages run at once and with what, from the recipe and the machine."""
    recipe = experiment.recipe
    cores = machine.available_cores()
    trainings = len(experiment.systems) * len(recipe.seeds)
    gpus = machine.visible_gpus()
    if gpus:
        jobs = recipe.jobs or len(gpus)
        return Resources(jobs, recipe.threads or max(1, cores // jobs), gpus)
    threads = recipe.threads or max(1, cores // min(trainings, recipe.jobs or cores))
    return Resources(recipe.jobs or max(1, cores // threads), threads)


def script(experiment: Experiment, plan: Plan, threads: int) -> str:
    """Return `commands.sh`: the recipe as composed, and every command."""
    return commands.render_script(
        plan,
        title=f"{experiment.name}, made by fairseq-fixed run",
        threads=threads,
        files={paths.RECIPE: dump(experiment)},
    )


def run_session(experiment: Experiment, folder: Path, view: View, redo: Sequence[str] = ()) -> int:
    """Run what is not done yet of an experiment.

    Args:
        experiment: what to run.
        folder: where; made if it is missing.
        view: gets told what happens.
        redo: stages to run again, by name or by kind (`train`).

    Returns:
        How many stages ran; 0: all was done.

    Raises:
        FolderInUseError: another run is under way there.
        ExperimentError: the folder cannot be written, or a stage failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    plan = compile_plan(experiment)
    again = _select(plan, redo)
    resources = choose_resources(experiment)
    with folder_lock(folder):
        try:
            write_text(folder / paths.RECIPE, dump(experiment))
            commands_file = folder / paths.COMMANDS
            write_text(commands_file, script(experiment, plan, resources.threads))
            commands_file.chmod(0o755)
            ran = run_plan(plan, folder, view, resources, again)
        except OSError as error:
            place = error.filename or folder
            raise ExperimentError(
                f"cannot go on: {place}: {error.strerror or error}. Free some space or make the "
                "folder writable, then start the same command again; finished stages are kept"
            ) from error
        if experiment.recipe.results:
            written = collect_results(
                experiment, folder, Path(experiment.recipe.results).expanduser().absolute()
            )
            logger.info("%d results copied to %s", len(written), experiment.recipe.results)
    return ran


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
