"""Scores by length as tables and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.figures import save_figure
from fairseq_fixed.experiments.lengths import SMALL
from fairseq_fixed.experiments.names import METRIC_NAMES, markdown_table
from fairseq_fixed.experiments.summary import format_spread

__all__ = ["draw_lengths", "length_section"]

_SCHEMES = {
    "by_length": "By the length of the source",
    "by_training": "By distance to the lengths seen in training",
}


def length_section(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return Markdown lines: for both ways to divide the test set, a table of all systems.

    Args:
        results: of :func:`results.make_result`; those without `lengths` are left out.

    Returns:
        Lines, ending in an empty one; none where no result has scores by length.
    """
    systems = _by_system(results)
    if not systems:
        return []
    first = next(iter(systems.values()))[0]["lengths"]
    training = first["training"]
    lines = []
    small = False
    for scheme, title in _SCHEMES.items():
        buckets = first[scheme]
        header = ["", "", *(_label(bucket) for bucket in buckets)]
        rows = [["sentences", "", *(f"{bucket['sentences']:,}" for bucket in buckets)]]
        for metric in first["by_length"][0]["scores"]:
            for name, runs in systems.items():
                cells = [_cell(runs, scheme, bucket, metric) for bucket in buckets]
                rows.append([name, METRIC_NAMES.get(metric, metric), *cells])
        small = small or any(b["small"] and b["sentences"] for b in buckets)
        lines += [f"### {title}", "", *markdown_table(header, rows), ""]
    lines.append(
        f"- Lengths in {first['unit']}. Training: half of {training['sentences']:,} sentences have "
        f"at most {training['median']}, 95 % at most {training['percentile95']}, 99 % at most "
        f"{training['percentile99']}, the longest {training['longest']}."
    )
    if small:
        lines.append(f"- (in brackets): fewer than {SMALL} sentences, which say little.")
    if any(len(runs) > 1 for runs in systems.values()):
        lines.append("- Several seeds: mean ± standard deviation over them.")
    return [*lines, ""]


def draw_lengths(results: Sequence[Mapping[str, Any]], path: Path, *, title: str = "") -> bool:
    """Draw the scores of every system by length; hollow where there are too few sentences.

    Args:
        results: of :func:`results.make_result`.
        path: the PNG to write.
        title: above all.

    Returns:
        Whether there was anything to draw.
    """
    systems = _by_system(results)
    if not systems:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    first = next(iter(systems.values()))[0]["lengths"]
    metrics = list(first["by_length"][0]["scores"])
    widths = [max(2, len(first[scheme])) for scheme in _SCHEMES]
    figure, axes = pyplot.subplots(
        len(metrics),
        2,
        figsize=(11, 3.2 * len(metrics)),
        sharey="row",
        squeeze=False,
        width_ratios=widths,
        layout="constrained",
    )
    for row, metric in enumerate(metrics):
        for axis, (scheme, label) in zip(axes[row], _SCHEMES.items(), strict=True):
            buckets = [bucket for bucket in first[scheme] if bucket["sentences"]]
            for number, (name, runs) in enumerate(systems.items()):
                _draw_line(axis, name, runs, scheme, buckets, metric, number, len(systems))
            axis.set_xticks(
                range(len(buckets)),
                [f"{_label(b).replace(': ', chr(10))}\n({b['sentences']:,})" for b in buckets],
                fontsize=8,
            )
            axis.set_xlim(-0.5, len(buckets) - 0.5)
            axis.grid(alpha=0.3)
            if row == 0:
                axis.set_title(label, fontsize=10)
            if row == len(metrics) - 1:
                axis.set_xlabel(f"{first['unit']} (sentences)")
        axes[row][0].set_ylabel(METRIC_NAMES.get(metric, metric))
    axes[0][0].legend(fontsize=8)
    if title:
        figure.suptitle(title)
    save_figure(figure, path)
    return True


def _draw_line(
    axis: Any,
    name: str,
    runs: Sequence[Mapping[str, Any]],
    scheme: str,
    buckets: Sequence[Mapping[str, Any]],
    metric: str,
    number: int,
    of: int,
) -> None:
    """Draw one system; lines stand side by side, so that their bars do not cover each other."""
    shift = 0.3 * (number / max(1, of - 1) - 0.5) if of > 1 else 0.0
    points = [
        (place + shift, bucket["small"], _values(runs, scheme, bucket, metric))
        for place, bucket in enumerate(buckets)
    ]
    points = [point for point in points if point[2]]
    colour = f"C{number % 10}"
    xs = [x for x, _, _ in points]
    means = [statistics.mean(values) for _, _, values in points]
    spreads = [statistics.stdev(v) if len(v) > 1 else 0.0 for _, _, v in points]
    axis.errorbar(xs, means, spreads, color=colour, linewidth=1.2, capsize=2, label=name)
    for x, mean, (_, few, _) in zip(xs, means, points, strict=True):
        axis.plot(x, mean, "o", color=colour, markerfacecolor="white" if few else colour)


def _by_system(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    systems: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        if result.get("lengths"):
            systems.setdefault(result["system"], []).append(result)
    return systems


def _values(
    runs: Sequence[Mapping[str, Any]], scheme: str, bucket: Mapping[str, Any], metric: str
) -> list[float]:
    """Return a bucket's score of each seed that has it."""
    place = (bucket["from"], bucket["to"])
    return [
        found["scores"][metric]
        for run in runs
        for found in run["lengths"][scheme]
        if (found["from"], found["to"]) == place and metric in found["scores"]
    ]


def _cell(
    runs: Sequence[Mapping[str, Any]], scheme: str, bucket: Mapping[str, Any], metric: str
) -> str:
    values = _values(runs, scheme, bucket, metric)
    if not values:
        return ""
    spread = statistics.stdev(values) if len(values) > 1 else None
    text = format_spread({"mean": statistics.mean(values), "spread": spread})
    return f"({text})" if bucket["small"] else text


def _label(bucket: Mapping[str, Any]) -> str:
    low, high = max(1, bucket["from"]), bucket["to"]
    if high is None:
        text = f"over {low - 1}"
    elif high <= low:
        text = f"{low}" if high == low else "none"
    else:
        text = f"{low} to {high}"
    return f"{text}: {bucket['name']}" if "name" in bucket else text
