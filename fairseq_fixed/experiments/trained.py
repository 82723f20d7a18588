"""The trained models of a run: finding one, loading it with its dictionaries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fairseq_fixed.models  # noqa: F401  registers the architectures
from fairseq_fixed.checkpoints import load_checkpoint
from fairseq_fixed.experiments import paths
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.recipe import Experiment, read
from fairseq_fixed.experiments.stages import compile_plan
from fairseq_fixed.experiments.stamps import Stamps
from fairseq_fixed.experiments.systems import System
from fairseq_fixed.experiments.validation import nearest

__all__ = ["Loaded", "Trained", "choose_system", "data_path", "find", "find_all", "load", "move"]


#: kinds of stages that make what a model and its text have in common
_TEXT_STAGES = ("subwords", "preprocess", "dictionary", "shards")


@dataclass(frozen=True)
class Trained:
    """Where one trained model lies.

    Attributes:
        experiment: the run's recipe.
        system: which system.
        seed: which seed.
        checkpoint: the averaged checkpoint.
        subwords: the sentencepiece model.
        data: the folder of the dictionaries.
    """

    experiment: Experiment
    system: System
    seed: int
    checkpoint: Path
    subwords: Path
    data: Path


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to be used.

    Attributes:
        model: in evaluation mode, on `device`.
        task: fairseq's, with the dictionaries.
        device: the GPU where there is one.
    """

    model: Any
    task: Any
    device: torch.device


def find(folder: Path, *, system: str | None = None, seed: int | None = None) -> Trained:
    """Return where a model of a run lies.

    Args:
        folder: of the run.
        system: its name in the table; None: the first that is not the baseline.
        seed: None: the run's first.

    Raises:
        ExperimentError: there is no such run, system or seed, it is not trained yet, or it was
            trained with other settings than the run's folder has now.
    """
    experiment = read(folder)
    chosen = choose_system(experiment, system)
    seeds = experiment.recipe.seeds
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise ExperimentError(f"{folder} has no seed {seed}; it has {seeds}")
    found = _place(folder, experiment, chosen, seed)
    for file in (found.checkpoint, found.subwords, found.data):
        if not file.exists():
            raise ExperimentError(
                f"{chosen.name}, seed {seed}, is not trained yet: {file} is missing. "
                f"fairseq-fixed status {folder} shows what is done"
            )
    _check_settings(folder, [found])
    return found


def find_all(folder: Path, *, system: str | None = None, seed: int | None = None) -> list[Trained]:
    """Return where all models of a run lie that are trained.

    Args:
        folder: of the run.
        system: only this one.
        seed: only this one.

    Raises:
        ExperimentError: as :func:`find`; none is trained yet.
    """
    experiment = read(folder)
    systems = experiment.systems if system is None else (choose_system(experiment, system),)
    seeds = experiment.recipe.seeds if seed is None else [seed]
    places = [_place(folder, experiment, one, number) for one in systems for number in seeds]
    found = [place for place in places if place.checkpoint.exists()]
    _check_settings(folder, found)
    return found or [
        find(folder, system=systems[0].name, seed=seeds[0])  # says what is missing
    ]


def _check_settings(folder: Path, found: Sequence[Trained]) -> None:
    """Check that models go with the dictionaries and subwords beside them.

    In a run that was started again with other settings, and stopped on its way, they need not: the
    subwords are then others than a model's, and its translations nonsense.
    """
    if not found:
        return
    whose = {
        paths.stage_name(kind, model.system.slug, model.seed): model
        for model in found
        for kind in ("train", "average")
    }
    stamps = Stamps(folder.absolute())
    for stage in compile_plan(found[0].experiment):
        model = found[0] if stage.kind in _TEXT_STAGES else whose.get(stage.name)
        if model is not None and stamps.outdated(stage):
            raise ExperimentError(
                f"{folder}: {model.system.name}, seed {model.seed}, was trained with other "
                f"settings than the run has now ({stage.name} is to be done again). Run it to its "
                "end, or with the old settings"
            )


def _place(folder: Path, experiment: Experiment, system: System, seed: int) -> Trained:
    return Trained(
        experiment=experiment,
        system=system,
        seed=seed,
        checkpoint=folder / paths.seed_folder(system.slug, seed) / paths.AVERAGED,
        subwords=folder / paths.SUBWORDS / "model.model",
        data=folder / paths.BINARY,
    )


def choose_system(experiment: Experiment, wanted: str | None) -> System:
    """Return a system by its name; without one, the first that is not the baseline.

    Raises:
        ExperimentError: the run has no such system.
    """
    if wanted is None:
        return (*experiment.others, experiment.baseline)[0]
    for system in experiment.systems:
        if wanted in (system.name, system.slug):
            return system
    names = [system.name for system in experiment.systems]
    raise ExperimentError(f"the run has no system {wanted!r}; {nearest(wanted, names)}")


def data_path(folder: Path) -> str:
    """Return a folder of data as fairseq takes it: a colon divides two folders there.

    Raises:
        ExperimentError: its path holds a colon, from the working directory, too.
    """
    absolute = str(folder.absolute())
    path = os.path.relpath(absolute) if ":" in absolute else absolute
    if ":" in path:
        raise ExperimentError(
            f"{absolute}: fairseq takes a colon for the end of a folder's name. Give the folder "
            "another name, or work from inside the one whose name holds the colon"
        )
    return path


def load(checkpoint: Path, data: Path, *, cpu: bool = False) -> Loaded:
    """Load a model.

    Args:
        checkpoint: of fairseq-train, or an average.
        data: folder of the dictionaries, as fairseq-preprocess writes it.
        cpu: do without a GPU that is there.

    Raises:
        CheckpointError: the checkpoint is damaged, or holds what could run code.
        ExperimentError: as for :func:`data_path`.
    """
    from fairseq import checkpoint_utils

    try:
        models, config, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], arg_overrides={"data": data_path(data)}
        )
    except Exception:
        load_checkpoint(checkpoint)  # says what is wrong with a damaged or foreign one
        raise
    device = torch.device("cuda" if torch.cuda.is_available() and not cpu else "cpu")
    model = models[0]
    model.eval()
    model.to(device)
    model.prepare_for_inference_(config)
    return Loaded(model, task, device)


def move(sample: Any, device: torch.device) -> Any:
    """Return a batch of fairseq's with all of its tensors on a device."""
    if isinstance(sample, torch.Tensor):
        return sample.to(device)
    if isinstance(sample, dict):
        return {key: move(value, device) for key, value in sample.items()}
    return sample
