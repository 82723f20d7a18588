"""The main table of a report, and what must be said about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_fixed.experiments.convergence import converged, describe_ending
from fairseq_fixed.experiments.names import METRIC_NAMES, markdown_table
from fairseq_fixed.experiments.speed import losses_of
from fairseq_fixed.experiments.summary import describe_difference, format_spread

__all__ = ["difference_lines", "notes", "table", "trainings_section"]

_ONE_SIDED = (
    " sacrebleu's bootstrap looks at one side: a two-sided p is twice as large or more, and "
    "score.trials gives one."
)
_MANY_SEEDS = 10  # from which on a test over seeds needs no warning


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
        if row.get("valid_loss_spread") is not None:
            loss += f" ± {row['valid_loss_spread']:.3f}"
        cells = [
            row["system"],
            *([str(len(row["seeds"]))] if several else []),
            _integer(row["parameters"]),
            _integer(row["tokens_per_second"]),
            "-".join(_integer(u) for u in dict.fromkeys((updates[0], updates[-1]))),
            loss + ("" if row["converged"] else "*"),
        ]
        cells += [format_spread(row["scores"][m]) if m in row["scores"] else "" for m in metrics]
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
    for row in report["rows"]:
        if other := row.get("incomparable"):
            names = ", ".join(METRIC_NAMES.get(m, m) for m in other)
            lines.append(
                f"{row['system']}: no difference in {names}: it was not scored as "
                f"{report['baseline']} was (see the signatures)."
            )
    lines.append(
        "tokens/s: target tokens a second in training. valid loss: bits a subword, last validation."
    )
    if any(not row["converged"] for row in report["rows"]):
        lines.append(
            "\\* not converged: the lowest validation loss, label smoothing included, is among the "
            "last five, so more updates would still help."
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
    differences = [
        (row["system"], metric, difference, difference.get("over_seeds"))
        for row in report["rows"]
        for metric, difference in row["differences"].items()
    ]
    seeds = [entry for entry in differences if entry[3] and max(entry[3]["seeds"]) > 1]
    sentences = [entry for entry in differences if entry[3] and max(entry[3]["seeds"]) == 1]
    others = [entry for entry in differences if not entry[3] and entry[2]["p"]]
    against = f"ignificance against {report['baseline']} by"
    above = f"above p = {report['alpha']:g} a difference is not significant."
    lines = []
    if seeds:
        count = seeds[0][3]["resamples"]
        lines.append(
            f"S{against} a bootstrap that resamples sentences and seeds together ({count:,} "
            f"resamples): {above}"
        )
        # a single seed has its own line
        fewest = min(count for entry in seeds for count in entry[3]["seeds"] if count > 1)
        if fewest < _MANY_SEEDS:
            lines.append(
                f"Of so few seeds as {fewest} that p is rough, and too small more often than too "
                "large."
            )
        alone = dict.fromkeys(
            system if own == 1 else report["baseline"]
            for system, _, _, test in seeds
            for own, base in [test["seeds"]]
            if 1 in (own, base)
        )
        if alone:
            lines.append(
                f"{', '.join(alone)}: one seed. The test lends it the spread of the seeds of the "
                "system it is compared with."
            )
    if others:
        names = {
            "bootstrap": "paired bootstrap",
            "randomisation": "paired approximate randomisation",
        }
        kinds = dict.fromkeys(kind for entry in others for kind in entry[2]["p"])
        lines.append(
            _whose(others, differences)
            + f"{against} {' and '.join(names[kind] for kind in kinds)}: the larger p is shown; "
            f"above {report['alpha']:g} a difference is not significant."
            + (_ONE_SIDED if "randomisation" not in kinds else "")
            + (" It must be so with every seed." if len(report["seeds"]) > 1 else "")
        )
    if sentences:
        count = sentences[0][3]["resamples"]
        lines.append(
            _whose(sentences, differences)
            + f"{against} a paired bootstrap of the sentences ({count:,} resamples): {above}"
        )
    return lines


def _whose(some: Sequence[Any], all_: Sequence[Any]) -> str:
    """Return whose differences these are, up to the `s` of significance; `S` if they are all."""
    if len(some) == len(all_):
        return "S"
    systems, metrics = (list(dict.fromkeys(entry[i] for entry in some)) for i in (0, 1))
    if len(some) == sum(entry[0] in systems for entry in all_):  # whole rows
        return f"{', '.join(systems)}: s"
    return f"{', '.join(METRIC_NAMES.get(m, m) for m in metrics)}: s"


def trainings_section(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return Markdown lines: a table of all trainings, system by system and seed by seed."""
    metrics = list(results[0]["scores"])
    header = ["system", "seed", *(METRIC_NAMES.get(m, m) for m in metrics)]
    header += ["best valid loss", "at update", "updates", "minutes", "ended by", "converged"]
    rows = []
    for result in results:
        training = result["training"]
        losses = [(loss, point["update"]) for loss, point in losses_of(result["curve"])]
        loss, update = min(losses, default=(None, None))
        seconds = training["seconds"]
        rows.append(
            [
                result["system"],
                str(result["seed"]),
                *(
                    f"{result['scores'][m]['score']:.2f}" if m in result["scores"] else ""
                    for m in metrics
                ),
                "" if loss is None else f"{loss:.3f}",
                _integer(update),
                _integer(training["updates"]),
                "" if seconds is None else f"{seconds / 60:.1f}",
                describe_ending(result),
                "yes" if converged(result) else "no",
            ]
        )
    return [
        *markdown_table(header, rows),
        "",
        "- best valid loss: bits a subword. converged: the lowest validation loss is not among the "
        "last five; label smoothing is part of that loss, as for train.patience, and another "
        "validation may have its lowest.",
        "",
    ]


def _integer(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
