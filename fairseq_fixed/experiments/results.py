"""What one trained and scored model leaves: a small JSON that lasts, fit to be committed."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import counts, machine, paths
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.lengths import account, file_lengths
from fairseq_fixed.experiments.recipe import Experiment
from fairseq_fixed.experiments.scoring import make_metrics, read_lines
from fairseq_fixed.experiments.settings import flat_settings, settings_hash
from fairseq_fixed.experiments.stages import compile_plan
from fairseq_fixed.experiments.stamps import Stamps, read_json, write_json
from fairseq_fixed.experiments.training_log import read_training_log

__all__ = [
    "FORMAT",
    "SIGNIFICANCE",
    "collect_results",
    "complete",
    "make_result",
    "read_tests",
    "without_counts",
    "without_tests",
]

logger = logging.getLogger(__name__)

SIGNIFICANCE = "significance.json"  # beside the results: what tests say of their differences

_TESTS = ("baseline", "systems", "hashes", "seeds")  # of that file

FORMAT = 1  # raised when a field changes its meaning
_ORIGIN = ("machine", "versions", "commit", "date")


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
    kept = {
        "lengths": read_json(place / paths.LENGTHS),
        "statistics": read_json(place / paths.STATISTICS),
    }
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
            "ended": log.ended,
        },
        "budget": {
            "max_update": train.max_update,
            "max_hours": train.max_hours,
            "patience": train.patience,
            "max_tokens": train.max_tokens,
            "update_freq": train.update_freq,
        },
        "model": dataclasses.asdict(experiment.recipe.model),
        "settings": flat_settings(experiment.recipe),
        "curve": log.curve(),
        "machine": machine.describe_machine(),
        "versions": machine.versions(),
        "commit": machine.git_commit(),
        "date": time.strftime("%Y-%m-%d"),
        **{key: content for key, content in kept.items() if content is not None},
    }


def complete(experiment: Experiment, folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with what an older version did not write yet, made of the run's files.

    Nothing in the run's folder is changed, and what the result says already stays.

    Args:
        experiment: the recipe.
        folder: the run's folder.
        result: one of its results.
    """
    place = folder / paths.seed_folder(result["slug"], result["seed"])
    result = {"settings": flat_settings(experiment.recipe), **result}
    if {"statistics", "lengths"} <= result.keys() or not (place / paths.HYPOTHESES).is_file():
        return result
    metrics = make_metrics(list(result["scores"]), experiment.tokenizer)
    language = experiment.recipe.source
    statistics, lengths = account(
        read_lines(place / paths.HYPOTHESES),
        read_lines(folder / paths.RAW / f"test.{experiment.recipe.target}"),
        metrics,
        source=read_lines(folder / paths.SUBWORDS / f"test.{language}"),
        train=file_lengths(folder / paths.SUBWORDS / f"train.{language}"),
    )
    for name, table in counts.unpack(statistics).items():
        again = counts.score_of(metrics[name], table.sum(0))
        stated = result["scores"][name]["score"]
        if abs(again - stated) > 1e-6:
            raise ExperimentError(
                f"{place}: {name} is {again:.4f}, but {paths.RESULT} says {stated:.4f}: the "
                "translations have changed since; fairseq-fixed run scores them again"
            )
    return {**without_counts(result), "lengths": lengths, "statistics": statistics}


def without_counts(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without its counts a sentence, for people to read."""
    return {key: value for key, value in result.items() if key != "statistics"}


def collect_results(experiment: Experiment, folder: Path, results: Path) -> list[Path]:
    """Copy what a run has finished to `results/RECIPE/`, under names that tell settings apart.

    Results of older versions get what they lack (:func:`complete`). What the tests say of the
    differences goes beside them. Of a run that is being done again with other settings, results and
    tests of the old ones are left out.

    Returns:
        The files written.

    Raises:
        ExperimentError: `results` cannot be written, or a result does not fit its translations.
    """
    written = []
    hashes: dict[str, str] = {}
    replaced: set[str] = set()  # systems with other scores than before
    for system in experiment.systems:
        for seed in experiment.recipe.seeds:
            result = read_json(folder / paths.seed_folder(system.slug, seed) / paths.RESULT)
            if result is None:
                continue
            digest = settings_hash(experiment, system)
            if result.get("settings_hash") != digest:
                logger.warning(
                    "%s, seed %d: left out, the recipe's settings have changed since; the run has "
                    "not come to it again",
                    system.name, seed,
                )  # fmt: skip
                continue
            hashes[system.slug] = digest
            target = results / experiment.name / f"{system.slug}.seed{seed}.{digest}.json"
            written.append(target)
            before = read_json(target)
            if isinstance(before, dict) and before.get("scores") != result["scores"]:
                replaced.add(system.slug)
            _write(target, _as_trained(complete(experiment, folder, result), before))
    if written and experiment.others:
        target = results / experiment.name / SIGNIFICANCE
        tests = read_json(folder / paths.SIGNIFICANCE)
        comparing = compile_plan(experiment)["compare"]
        if tests is not None and Stamps(folder).outdated(comparing):
            logger.info("the tests of the differences are left out: they are of other translations")
            tests = None
        old = read_tests(target)
        _write(target, _merged_tests(experiment, tests, hashes, replaced, old))
    return written


def read_tests(file: Path) -> dict[str, Any] | None:
    """Read what tests say of a recipe's results; None if nothing was tested yet.

    Raises:
        ExperimentError: the file is damaged.
    """
    content = read_json(file)
    if content is None and not file.exists():
        return None
    missing = [key for key in _TESTS if key not in content] if isinstance(content, dict) else _TESTS
    if missing:  # without it, another system would silently become the baseline
        raise ExperimentError(
            f"{file} is damaged: it is not valid JSON, or lacks some of {', '.join(_TESTS)}. "
            "fairseq-fixed collect RUN makes it again from the run's folder, once it is removed"
        )
    return content


def _as_trained(result: dict[str, Any], old: Any) -> dict[str, Any]:
    """Return a result that, scored anew, still says where and when its model was trained."""
    model = ("training", "curve", "scores")
    if not isinstance(old, dict) or any(result.get(key) != old.get(key) for key in model):
        return result
    return {**result, **{key: old[key] for key in _ORIGIN if key in old}}


def _write(path: Path, content: Any) -> None:
    try:
        write_json(path, content)
    except OSError as error:
        raise ExperimentError(f"cannot write {path}: {error.strerror or error}") from error


def _merged_tests(
    experiment: Experiment, tests: Any, hashes: dict[str, str], replaced: set[str], old: Any
) -> dict[str, Any]:
    """Add a run's tests to those of earlier runs against the same baseline, so tables can grow.

    Args:
        experiment: the recipe.
        tests: what the verb `compare` wrote; None as long as the run is not finished.
        hashes: the settings' hashes of the systems that are finished.
        replaced: systems whose earlier translations, of the same settings, are replaced by others:
            on another machine a training does not repeat itself to the digit.
        old: the content of `results/RECIPE/significance.json`; None if there is none.
    """
    base = experiment.baseline.slug
    content = {
        "baseline": base,
        "alpha": experiment.recipe.score.alpha,
        "bootstrap": experiment.recipe.score.bootstrap,
        "systems": [system.slug for system in experiment.systems],
        # which settings the tests are about: p-values of others are not shown
        "hashes": hashes,
        "seeds": tests["seeds"] if tests else {},
    }
    if old and old["baseline"] == base and hashes.get(base) in (None, old["hashes"].get(base)):
        content["systems"] = list(dict.fromkeys([*old["systems"], *content["systems"]]))
        changed = {slug for slug, digest in hashes.items() if old["hashes"].get(slug) != digest}
        content["hashes"] = {**old["hashes"], **hashes}
        if base not in replaced:
            kept = without_tests(old["seeds"], changed | replaced)
            content["seeds"] = _merged(kept, content["seeds"])
    return content


def without_tests(seeds: dict[str, Any], slugs: Collection[str]) -> dict[str, Any]:
    """Return tests by seed without those of some systems."""
    return {
        seed: {
            **content,
            "tests": {
                test: {
                    metric: {slug: value for slug, value in by_slug.items() if slug not in slugs}
                    for metric, by_slug in by_metric.items()
                }
                for test, by_metric in content["tests"].items()
            },
        }
        for seed, content in seeds.items()
    }


def _merged(old: Any, new: Any) -> Any:
    """Return nested mappings merged; where both hold a value, the new one."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
