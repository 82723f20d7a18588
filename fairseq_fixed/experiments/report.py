"""The report of a run: Markdown for people, JSON for programs, a PNG of the learning curves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import machine, paths
from fairseq_fixed.experiments.curves import draw_curves
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.length_view import draw_lengths
from fairseq_fixed.experiments.recipe import Experiment
from fairseq_fixed.experiments.report_text import render
from fairseq_fixed.experiments.results import complete, without_counts
from fairseq_fixed.experiments.scoring import read_lines
from fairseq_fixed.experiments.settings import settings_hash
from fairseq_fixed.experiments.speed import reach
from fairseq_fixed.experiments.stamps import read_json, write_json, write_text
from fairseq_fixed.experiments.summary import summarise

__all__ = ["build_report", "write_report"]

_SAMPLE_SEED = 1  # the sentences shown are drawn, not chosen
_SAMPLE_WORDS = (6, 30)


def build_report(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Return the report of a run as plain data.

    Args:
        experiment: the recipe.
        folder: the run's folder.

    Raises:
        ExperimentError: a result is missing, or of other settings.
    """
    results = []
    for system in experiment.systems:
        for seed in experiment.recipe.seeds:
            file = folder / paths.seed_folder(system.slug, seed) / paths.RESULT
            result = read_json(file)
            if result is None:
                raise ExperimentError(f"{file} is missing: the run is not finished")
            if result.get("settings_hash") not in (None, settings_hash(experiment, system)):
                raise ExperimentError(
                    f"{file} is of other settings than {paths.RECIPE}: the run was started again "
                    "since, and has not come to it. Run it to its end"
                )
            results.append(complete(experiment, folder, result))
    significance = None
    if experiment.others:
        significance = read_json(folder / paths.SIGNIFICANCE)
        if significance is None:
            raise ExperimentError(f"{folder / paths.SIGNIFICANCE} is missing")
    alpha = experiment.recipe.score.alpha
    return {
        "recipe": experiment.name,
        "pair": experiment.recipe.pair,
        "baseline": experiment.baseline.name,
        "seeds": experiment.recipe.seeds,
        "alpha": alpha,
        "rows": summarise(
            results,
            baseline=experiment.baseline.slug,
            significance=significance,
            alpha=alpha,
            resamples=experiment.recipe.score.bootstrap,
        ),
        "signatures": {m: s["signature"] for m, s in results[0]["scores"].items()},
        "significance": significance,
        "speed": reach(results, experiment.baseline.slug),
        "samples": _samples(experiment, folder),
        "results": [without_counts(result) for result in results],
        "machine": machine.describe_machine(),
        "versions": machine.versions(),
        "commit": machine.git_commit(),
    }


def write_report(experiment: Experiment, folder: Path) -> Path:
    """Write `report.md`, `report.json`, `curves.png` and `lengths.png` in the run's folder.

    Returns:
        The Markdown file.
    """
    report = build_report(experiment, folder)
    place = folder / paths.REPORT
    place.mkdir(parents=True, exist_ok=True)
    title = f"{experiment.name} ({experiment.recipe.pair})"
    baseline = experiment.baseline.slug
    draw_curves(report["results"], place / "curves.png", title=title, baseline=baseline)
    draw_lengths(report["results"], place / "lengths.png", title=title)
    write_json(place / "report.json", report)
    markdown = place / "report.md"
    write_text(markdown, render(report, experiment.recipe.description))
    return markdown


def _samples(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    recipe = experiment.recipe
    source = read_lines(folder / paths.RAW / f"test.{recipe.source}")
    reference = read_lines(folder / paths.RAW / f"test.{recipe.target}")
    keys_file = folder / paths.RAW / "test.keys"
    keys = read_lines(keys_file) if keys_file.is_file() else []
    seed = recipe.seeds[0]
    translations = {
        system.name: read_lines(folder / paths.seed_folder(system.slug, seed) / paths.HYPOTHESES)
        for system in experiment.systems
    }
    shortest, longest = _SAMPLE_WORDS
    fitting = [i for i, line in enumerate(source) if shortest <= len(line.split()) <= longest]
    candidates = fitting if len(fitting) >= recipe.samples else list(range(len(source)))
    count = min(max(0, recipe.samples), len(candidates))
    chosen = sorted(random.Random(_SAMPLE_SEED).sample(candidates, count))
    return [
        {
            "line": i + 1,
            "key": keys[i] if i < len(keys) else "",
            "source": source[i],
            "reference": reference[i],
            "systems": {name: lines[i] for name, lines in translations.items()},
        }
        for i in chosen
    ]
