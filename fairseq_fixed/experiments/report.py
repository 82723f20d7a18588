"""The report of a run: Markdown for people, JSON for programs, a PNG of the learning curves."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import machine, paths
from fairseq_fixed.experiments.curves import draw_curves
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.recipe import Experiment
from fairseq_fixed.experiments.results import complete, without_counts
from fairseq_fixed.experiments.scoring import read_lines
from fairseq_fixed.experiments.stamps import read_json, write_json, write_text
from fairseq_fixed.experiments.summary import describe_difference, format_spread, summarise

__all__ = [
    "METRIC_NAMES",
    "build_report",
    "difference_lines",
    "markdown_table",
    "notes",
    "table",
    "write_report",
]

METRIC_NAMES = {"bleu": "BLEU", "chrf": "chrF", "chrf++": "chrF++", "ter": "TER"}
_SAMPLE_SEED = 1  # the sentences shown are drawn, not chosen
_SAMPLE_WORDS = (6, 30)
_MANY_SEEDS = 10  # from which on a test over seeds needs no warning


def build_report(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Return the report of a run as plain data.

    Args:
        experiment: the recipe.
        folder: the run's folder.

    Raises:
        ExperimentError: a result is missing.
    """
    results = []
    for system in experiment.systems:
        for seed in experiment.recipe.seeds:
            file = folder / paths.seed_folder(system.slug, seed) / paths.RESULT
            result = read_json(file)
            if result is None:
                raise ExperimentError(f"{file} is missing: the run is not finished")
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
        "samples": _samples(experiment, folder),
        "results": [without_counts(result) for result in results],
        "machine": machine.describe_machine(),
        "versions": machine.versions(),
        "commit": machine.git_commit(),
    }


def write_report(experiment: Experiment, folder: Path) -> Path:
    """Write `report.md`, `report.json` and `curves.png` in the run's folder.

    Returns:
        The Markdown file.
    """
    report = build_report(experiment, folder)
    place = folder / paths.REPORT
    place.mkdir(parents=True, exist_ok=True)
    title = f"{experiment.name} ({experiment.recipe.pair})"
    draw_curves(report["results"], place / "curves.png", title=title)
    write_json(place / "report.json", report)
    markdown = place / "report.md"
    write_text(markdown, render(report, experiment))
    return markdown


def table(
    report: Mapping[str, Any], *, differences: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the main table, as texts.

    Args:
        report: of `build_report`.
        differences: whether there are columns for the differences from the baseline.
    """
    metrics = list(report["signatures"])
    several = len(report["seeds"]) > 1
    header = ["system", *(["seeds"] if several else [])]
    header += ["parameters", "tokens/s", "updates", "valid loss"]
    header += [METRIC_NAMES.get(m, m) for m in metrics]
    if differences:
        header += [f"Δ{METRIC_NAMES.get(m, m)}" for m in metrics]
    rows = []
    for row in report["rows"]:
        updates = sorted(set(row["updates"]))
        loss = "" if row["valid_loss"] is None else f"{row['valid_loss']:.3f}"
        cells = [
            row["system"],
            *([str(len(row["seeds"]))] if several else []),
            _integer(row["parameters"]),
            _integer(row["tokens_per_second"]),
            "-".join(_integer(u) for u in dict.fromkeys((updates[0], updates[-1]))),
            loss + ("" if row["converged"] else "*"),
        ]
        cells += [format_spread(row["scores"][m]) for m in metrics]
        for m in metrics if differences else ():
            difference = row["differences"].get(m)
            if row["baseline"]:
                cells.append("baseline")
            else:
                cells.append(describe_difference(difference) if difference else "")
        rows.append(cells)
    return header, rows


def difference_lines(report: Mapping[str, Any]) -> list[str]:
    """Return a line a system: how it differs from the baseline, and whether by chance."""
    lines = []
    for row in report["rows"]:
        texts = [
            f"{METRIC_NAMES.get(m, m)} {describe_difference(d)}"
            for m, d in row["differences"].items()
        ]
        if texts:
            lines.append(f"{row['system']} against {report['baseline']}: {', '.join(texts)}")
    return lines


def notes(report: Mapping[str, Any]) -> list[str]:
    """Return what must be said about the table."""
    seeds = report["seeds"]
    if len(seeds) == 1:
        lines = [
            f"One seed ({seeds[0]}): the differences hold for these two trainings; one seed proves "
            "nothing about the systems."
            if len(report["rows"]) == 2
            else f"One seed ({seeds[0]}): one seed proves nothing about the systems."
        ]
    else:
        lines = [
            f"{len(seeds)} seeds ({', '.join(map(str, seeds))}): mean ± standard deviation over "
            "them (sample)."
        ]
    lines += _test_notes(report)
    lines.append(
        "tokens/s: target tokens a second in training. valid loss: bits a subword, last validation."
    )
    if any(not row["converged"] for row in report["rows"]):
        lines.append(
            "\\* not converged: the lowest validation loss is among the last five, so more updates "
            "would still help."
        )
    for result in report["results"]:
        test = result["test"]
        count = test["too_long_source"] + test["too_long_reference"]
        if count:
            lines.append(
                f"{result['system']}, seed {result['seed']}: {count} of {test['sentences']} test "
                "sentences were too long for model.max_positions and count as empty translations."
            )
        if result["training"]["skipped_sentences"]:
            lines.append(
                f"{result['system']}, seed {result['seed']}: fairseq skipped "
                f"{result['training']['skipped_sentences']} too long sentences in training."
            )
    return lines


def _test_notes(report: Mapping[str, Any]) -> list[str]:
    """Return how the differences were tested."""
    others = [row for row in report["rows"] if row["differences"]]
    joint = [row for row in others if any(d.get("over_seeds") for d in row["differences"].values())]
    rest = [row for row in others if row not in joint]
    base, alpha = report["baseline"], report["alpha"]
    lines = []
    if joint:
        tests = [d["over_seeds"] for row in joint for d in row["differences"].values()]
        fewest = min(min(test["seeds"]) for test in tests)
        lines.append(
            f"Significance against {base} by a bootstrap that resamples sentences and seeds "
            f"together ({tests[0]['resamples']:,} resamples): above p = {alpha:g} a difference is "
            "not significant."
        )
        if fewest < _MANY_SEEDS:
            lines.append(
                f"With {fewest} seed{'s' if fewest > 1 else ''} a system that p is coarse, "
                "and more often too small than too large."
            )
    seeds = list((report["significance"] or {"seeds": {}})["seeds"].values())
    if rest and seeds:
        names = {
            "bootstrap": "paired bootstrap",
            "randomisation": "paired approximate randomisation",
        }
        tests_used = " and ".join(names[kind] for kind in seeds[0]["tests"])
        whose = f"{', '.join(row['system'] for row in rest)}: s" if joint else "S"
        lines.append(
            f"{whose}ignificance against {base} by {tests_used}: the larger p is shown; above "
            f"{alpha:g} a difference is not significant."
            + (" It must be so with every seed." if len(report["seeds"]) > 1 else "")
        )
    return lines


def render(report: Mapping[str, Any], experiment: Experiment) -> str:
    """Return the report as Markdown."""
    header, rows = table(report)
    lines = [f"# {report['recipe']}: {report['pair']}", ""]
    if experiment.recipe.description:
        lines += [experiment.recipe.description, ""]
    lines += markdown_table(header, rows)
    lines += ["", *(f"- {note}" for note in notes(report)), ""]
    lines += ["![learning curves](curves.png)", "", "## Translations", ""]
    for sample in report["samples"]:
        lines += [f"**{sample['key']}**" if sample["key"] else f"**Line {sample['line']}**", ""]
        lines += [f"- source: {sample['source']}", f"- reference: {sample['reference']}"]
        lines += [f"- {name}: {text or '(empty)'}" for name, text in sample["systems"].items()]
        lines.append("")
    if len(report["seeds"]) > 1:
        lines += ["## Seeds", ""]
        head = ["system", "seed", *(METRIC_NAMES.get(m, m) for m in report["signatures"])]
        body = [
            [r["system"], str(r["seed"]), *(f"{s['score']:.2f}" for s in r["scores"].values())]
            for r in report["results"]
        ]
        lines += [*markdown_table(head, body), ""]
    lines += ["## Signatures", ""]
    lines += [f"- {METRIC_NAMES.get(m, m)}: `{s}`" for m, s in report["signatures"].items()]
    if report["significance"] and report["significance"]["seeds"]:
        first = next(iter(report["significance"]["seeds"].values()))
        for test, by_metric in first["signatures"].items():
            lines += [f"- {test}, {METRIC_NAMES.get(m, m)}: `{s}`" for m, s in by_metric.items()]
    lines += ["", "## Made with", ""]
    lines += [f"- {name} {version}" for name, version in report["versions"].items()]
    commit = report["commit"]
    lines.append(f"- commit {commit}" if commit else "- no git clone: the commit is not known")
    box = report["machine"]
    lines.append(
        f"- {box['processor']}, {box['cores']} cores, {box['memory_gib']} GiB, {box['system']}"
        + (f", {', '.join(box['gpus'])}" if box["gpus"] else ", no GPU")
    )
    lines.append("- every command: `commands.sh`; every setting: `recipe.yaml`")
    return "\n".join(lines) + "\n"


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


def _integer(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; the first column is left-aligned, numbers right."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    marks = ["---", *["---:"] * (len(header) - 1)]
    return [line(header), line(marks), *(line(row) for row in rows)]
