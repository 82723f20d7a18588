"""What one trained and scored model leaves: a small JSON that lasts, fit to be committed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import machine, paths
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.recipe import Experiment
from fairseq_fixed.experiments.stamps import read_json, write_json
from fairseq_fixed.experiments.systems import System
from fairseq_fixed.experiments.training_log import read_training_log

__all__ = ["FORMAT", "SIGNIFICANCE", "collect_results", "make_result", "settings_hash"]

SIGNIFICANCE = "significance.json"  # beside the results: what tests say of their differences

FORMAT = 1  # raised when a field changes its meaning
_SETTINGS = ("pair", "data", "subwords", "model", "train", "translate", "score")


def settings_hash(experiment: Experiment, system: System) -> str:
    """Return a short hash of all settings that decide a system's scores, the seed left out."""
    recipe = dataclasses.asdict(experiment.recipe)
    content = {key: recipe[key] for key in _SETTINGS}
    for key in ("train", "valid", "test"):  # where files lie decides nothing
        if key in content["data"]:
            content["data"][key] = [Path(p).name for p in content["data"][key]]
    for key in ("path", "urls"):  # nor where they come from
        content["data"].pop(key, None)
    content["system"] = list(system.arguments)
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def make_result(experiment: Experiment, slug: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the account of one model.

    Args:
        experiment: the recipe.
        slug: which system.
        seed: which seed.
        folder: the run's folder.

    Raises:
        ExperimentError: the recipe has no such system, or a file of the run is missing.
    """
    system = next((s for s in experiment.systems if s.slug == slug), None)
    if system is None:
        raise ExperimentError(f"the recipe has no system in a folder {slug!r}")
    place = folder / paths.seed_folder(slug, seed)
    score = read_json(place / paths.SCORE)
    info = read_json(place / paths.HYPOTHESES_INFO)
    if score is None or info is None:
        raise ExperimentError(f"{place} holds no {paths.SCORE} or no {paths.HYPOTHESES_INFO}")
    log = read_training_log(folder / f"logs/{paths.stage_name('train', slug, seed)}.log")
    train = experiment.recipe.train
    best = log.best_valid
    since_best = sum(u > best[0] for u in log.valid) if best else 0
    return {
        "format": FORMAT,
        "recipe": experiment.name,
        "pair": experiment.recipe.pair,
        "system": system.name,
        "slug": slug,
        "arch": system.arch,
        "heads": system.heads,
        "flags": list(system.flags),
        "seed": seed,
        "settings_hash": settings_hash(experiment, system),
        "scores": score,
        "test": {
            "sentences": info["sentences"],
            "empty": info["empty"],
            "too_long_source": len(info["too_long_source"]),
            "too_long_reference": len(info["too_long_reference"]),
        },
        "training": {
            "parameters": log.parameters,
            "updates": log.updates,
            "tokens_per_second": log.tokens_per_second,
            "seconds": log.wall,
            "skipped_sentences": log.skipped,
            "valid_loss": log.last_valid,
            "best_valid_loss": best[1] if best else None,
            "best_valid_update": best[0] if best else None,
            "validations_since_best": since_best,
        },
        "budget": {
            "max_update": train.max_update,
            "max_hours": train.max_hours,
            "patience": train.patience,
            "max_tokens": train.max_tokens,
            "update_freq": train.update_freq,
        },
        "model": dataclasses.asdict(experiment.recipe.model),
        "curve": log.curve(),
        "machine": machine.describe_machine(),
        "versions": machine.versions(),
        "commit": machine.git_commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def collect_results(experiment: Experiment, folder: Path, results: Path) -> list[Path]:
    """Copy a run's results to `results/RECIPE/`, under names that tell settings apart.

    What the tests say of the differences goes beside them.

    Returns:
        The files written.

    Raises:
        ExperimentError: `results` cannot be written.
    """
    written = []
    for system in experiment.systems:
        for seed in experiment.recipe.seeds:
            source = folder / paths.seed_folder(system.slug, seed) / paths.RESULT
            if not source.is_file():
                continue
            digest = _stored_hash(folder, system, seed)
            target = results / experiment.name / f"{system.slug}.seed{seed}.{digest}.json"
            written.append(target)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
            except OSError as error:
                raise ExperimentError(
                    f"cannot write {target}: {error.strerror or error}"
                ) from error
    _merge_significance(experiment, folder, results / experiment.name / SIGNIFICANCE)
    return written


def _stored_hash(folder: Path, system: System, seed: int) -> str:
    """Return the settings' hash that a result states."""
    result = read_json(folder / paths.seed_folder(system.slug, seed) / paths.RESULT)
    return str((result or {}).get("settings_hash", "unknown"))


def _merge_significance(experiment: Experiment, folder: Path, target: Path) -> None:
    """Add a run's tests to those of earlier runs against the same baseline, so tables can grow."""
    new = read_json(folder / paths.SIGNIFICANCE)
    if new is None:
        return
    content = {
        "baseline": experiment.baseline.slug,
        "alpha": experiment.recipe.score.alpha,
        "systems": [system.slug for system in experiment.systems],
        # which settings the tests are about: p-values of others are not shown
        "hashes": {
            system.slug: _stored_hash(folder, system, experiment.recipe.seeds[0])
            for system in experiment.systems
        },
        "seeds": new["seeds"],
    }
    old = read_json(target)
    base = content["baseline"]
    if old and old["baseline"] == base and old["hashes"][base] == content["hashes"][base]:
        content["systems"] = list(dict.fromkeys([*old["systems"], *content["systems"]]))
        content["hashes"] = {**old["hashes"], **content["hashes"]}
        content["seeds"] = _merged(old["seeds"], content["seeds"])
    write_json(target, content)


def _merged(old: Any, new: Any) -> Any:
    """Return nested mappings merged; where both hold a value, the new one."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
