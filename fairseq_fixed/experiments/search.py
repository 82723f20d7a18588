"""Searches settings with Optuna, by the valid loss alone: the test set is never looked at.

    fairseq-fixed run bible_es_en -m --search 30 systems=[7f+1l] \
        'train.lr=tag(log,interval(1e-3,1e-2))' model.dropout=0.1,0.2,0.3

Only trainings run, no translations. Values come from Hydra's own syntax: choices, `range` and
`interval`; `tag(log, …)` searches an interval on a logarithmic scale, `int(interval(2,6))` whole
numbers. The study is kept in `study.log`: started again, it goes on, an interrupted trial first.
Other settings, or other values to choose from, are another study in a folder of its own.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.lock import folder_lock
from fairseq_fixed.experiments.names import markdown_table
from fairseq_fixed.experiments.plan import Plan
from fairseq_fixed.experiments.progress import View
from fairseq_fixed.experiments.recipe import Experiment, load
from fairseq_fixed.experiments.runner import run_plans
from fairseq_fixed.experiments.session import (
    check_devices,
    check_programs,
    choose_resources,
    explained,
    open_run,
)
from fairseq_fixed.experiments.stamps import write_json, write_text
from fairseq_fixed.experiments.sweep import NO_SWEEP, Space, plan_search, short_keys
from fairseq_fixed.experiments.systems import slug
from fairseq_fixed.experiments.training_log import read_training_log

__all__ = ["distributions", "objective", "run_search"]

logger = logging.getLogger(__name__)

_SEED = 1  # of Optuna's sampler, of a new study
_SEARCHABLE = ("model.", "train.", "systems", "vars.")


def run_search(recipe: str, overrides: Sequence[str], trials: int, view: View) -> Path:
    """Try settings until so many trials are finished, and write what they gave.

    Args:
        recipe: as for :func:`recipe.compose`.
        overrides: Hydra's, some with several values.
        trials: how many, those of earlier calls counted.
        view: gets told what happens.

    Returns:
        The Markdown page.

    Raises:
        ExperimentError: Optuna is not installed, nothing or something unfit is searched, or every
            trial failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    try:
        import optuna
    except ImportError:
        raise ExperimentError(
            "--search needs optuna: pip install 'fairseq-fixed-attention[search]'"
        ) from None
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    space = plan_search(recipe, overrides)
    wanted = distributions(space.overrides)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with folder_lock(space.folder), explained(space.folder):
        study = optuna.create_study(
            study_name=space.name,
            storage=JournalStorage(JournalFileBackend(str(space.folder / "study.log"))),
            direction="minimize",
            load_if_exists=True,
        )
        # of a study that goes on, the same seed would draw the same values again
        seed = _SEED + len(study.trials)
        study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        _resume(study)
        resources = choose_resources(space.experiment, runs=trials)
        each = len(space.experiment.systems) * len(space.experiment.recipe.seeds)
        asked = 0
        while (left := trials - _finished(study)) > 0:
            count = max(1, min(left, resources.jobs // each))
            _run_batch(study, [study.ask(wanted) for _ in range(count)], space, resources, view)
            _write(study, space)
            asked += count
            if asked >= 2 * trials and _finished(study) < trials:
                raise ExperimentError(
                    f"{_finished(study)} trials of {asked} gave a valid loss, the others failed; "
                    f"their logs are in {space.folder}"
                )
    return _write(study, space)


def distributions(overrides: Sequence[Any]) -> dict[str, Any]:
    """Return Optuna's distributions by key.

    Args:
        overrides: Hydra's parsed ones, those with several values.

    Raises:
        ExperimentError: a key that does not decide the valid loss, or whose values change what it
            means; a sweep that is no choice, range or interval.
    """
    from hydra.core.override_parser.types import IntervalSweep, RangeSweep
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    found: dict[str, Any] = {}
    for override in overrides:
        key = override.key_or_group
        if not key.startswith(_SEARCHABLE):
            raise ExperimentError(
                f"{key} cannot be searched: the search compares valid losses, which say something "
                "of each other only for the same text and subwords (model.*, train.*, systems)"
            )
        value = override.value()
        log = "log" in getattr(value, "tags", ())
        if isinstance(value, IntervalSweep):
            kind = IntDistribution if isinstance(value.start, int) else FloatDistribution
            found[key] = kind(value.start, value.end, log=log)
        elif isinstance(value, RangeSweep) and isinstance(value.start, int):
            values: Any = value.range()
            found[key] = IntDistribution(values[0], values[-1], step=values.step)
        else:
            found[key] = CategoricalDistribution(list(override.sweep_string_iterator()))
    return found


def objective(experiment: Experiment, folder: Path) -> float:
    """Return the mean of the lowest valid losses (bits a subword) of a run's trainings.

    Raises:
        ExperimentError: one has not validated.
    """
    from fairseq_fixed.experiments.paths import stage_name

    losses = []
    for system in experiment.systems:
        for seed in experiment.recipe.seeds:
            name = stage_name("train", system.slug, seed)
            best = read_training_log(folder / f"logs/{name}.log").best_valid
            if best is None:
                raise ExperimentError(f"{folder}: {name} has not validated")
            losses.append(best[1])
    return sum(losses) / len(losses)


def training_plan(plan: Plan) -> Plan:
    """Return the stages up to the trainings, without the test set's."""
    wanted = {stage.name for stage in plan if stage.kind == "train"}
    for stage in reversed(plan.stages):
        if stage.name in wanted:
            wanted.update(plan.needs(stage))
    wanted.add("options")
    return Plan([stage for stage in plan if stage.name in wanted])


def _run_batch(study: Any, trials: Sequence[Any], space: Space, resources: Any, view: View) -> None:
    import optuna

    by_folder: dict[Path, list[Any]] = {}  # the sampler may ask for the same settings twice
    for trial in trials:
        by_folder.setdefault(space.folder / _folder(trial.params), []).append(trial)
    experiments: dict[Path, Experiment] = {}
    with contextlib.ExitStack() as stack:
        tasks = []
        for folder, same in by_folder.items():
            words = [f"{key}={_text(value)}" for key, value in same[0].params.items()]
            experiments[folder] = load(space.recipe, [*space.fixed, *words, NO_SWEEP])
            stack.enter_context(folder_lock(folder))
            task = open_run(experiments[folder], folder, resources, label=f"{folder.name}: ")
            check_devices(experiments[folder], resources.gpus)
            check_programs(task.plan, resources)
            tasks.append(replace(task, plan=training_plan(task.plan)))
        earlier = [path.parent for path in sorted(space.folder.glob("*/recipe.yaml"))]
        _, failures = run_plans(tasks, view, resources, [*earlier, space.base])
    for folder, same in by_folder.items():
        value, state = None, optuna.trial.TrialState.FAIL
        try:
            if folder in failures:
                raise failures[folder]
            value, state = objective(experiments[folder], folder), optuna.trial.TrialState.COMPLETE
        except ExperimentError as error:
            logger.warning("%s: %s", folder.name, str(error).partition("\n")[0])
        for trial in same:
            study.tell(trial, value, state=state)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _folder(params: Mapping[str, Any]) -> str:
    names = short_keys(params)
    return slug(".".join(f"{names[key]}-{_text(value)}" for key, value in params.items()))


def _resume(study: Any) -> None:
    """Ask again for what was being tried when an earlier call was stopped."""
    import optuna

    for trial in study.trials:
        if trial.state == optuna.trial.TrialState.RUNNING:
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            if trial.params:
                study.enqueue_trial(trial.params, skip_if_exists=False)


def _finished(study: Any) -> int:
    import optuna

    return sum(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials)


def _write(study: Any, space: Space) -> Path:
    import optuna

    done = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    done.sort(key=lambda trial: trial.value)
    content = [
        {"number": t.number, "valid_loss": t.value, "values": t.params, "folder": _folder(t.params)}
        for t in done
    ]
    write_json(space.folder / "search.json", {"search": space.name, "trials": content})
    names = short_keys(space.keys)
    header = [*names.values(), "valid loss", "trial"]
    rows = [
        [*(_shown(t.params.get(key)) for key in names), f"{t.value:.4f}", str(t.number)]
        for t in done
    ]
    lines = [f"# {space.name}: search", "", *markdown_table(header, rows), ""]
    lines.append("- valid loss: bits a subword, a training's lowest; the test set was not used.")
    if done:
        fixed = [word for word in space.fixed if not word.lstrip("+").startswith("out=")]
        best = [f"{key}={_text(value)}" for key, value in done[0].params.items()]
        command = shlex.join(["fairseq-fixed", "run", space.recipe, *fixed, *best])
        lines.append(f"- The best, in full: `{command}`.")
    page = space.folder / "search.md"
    write_text(page, "\n".join(lines) + "\n")
    return page


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
