"""Scores of a sweep as a picture: lines against one swept key, heat maps over two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.corpus import TextError, parse_limit
from fairseq_fixed.experiments.figures import save_figure
from fairseq_fixed.experiments.names import METRIC_NAMES

__all__ = ["constant", "draw", "finished", "number", "shown"]

_LOSS = "valid loss"  # a panel that is no metric of sacrebleu's
_LOG_RANGE = 8  # largest over smallest value of a key from which on its axis is logarithmic


def finished(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the points of a sweep that have a report."""
    return [point for point in content["points"] if point["report"]]


def constant(content: Mapping[str, Any]) -> set[str]:
    """Return the slugs of systems that are the same at all points: settings, seeds and scores.

    Their differences are, too, since all points have one baseline, or none of these.
    """
    points = finished(content)
    if len(points) < 2 or len({point["report"]["baseline"] for point in points}) > 1:
        return set()
    found: list[dict[str, Any]] = []
    for point in points:
        hashes = {result["slug"]: result["settings_hash"] for result in point["results"]}
        found.append(
            {
                row["slug"]: (hashes.get(row["slug"]), row["seeds"], row["scores"])
                for row in point["report"]["rows"]
            }
        )
    base = {row["slug"] for row in points[0]["report"]["rows"] if row["baseline"]}
    same = {slug for slug, what in found[0].items() if all(f.get(slug) == what for f in found)}
    return same if base <= same else set()


def shown(value: str) -> str:
    """Return a swept value without Hydra's quotes."""
    return value.strip("'\"")


def number(value: str) -> float | None:
    """Return the number that a swept value is (`5k` is 5,000), or None."""
    text = shown(value)
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = parse_limit(text)
    except TextError:
        return None
    return None if found is None else float(found)


def _series(content: Mapping[str, Any], place: int, metric: str) -> list[tuple[Any, float, float]]:
    """Return by point the values, a score and its spread, of the system at a place in the table."""
    found = []
    for point in finished(content):
        if place >= len(point["report"]["rows"]):
            continue
        row = point["report"]["rows"][place]
        if metric == _LOSS:
            score = {"mean": row["valid_loss"], "spread": row.get("valid_loss_spread")}
        else:
            score = row["scores"].get(metric, {"mean": None})
        if score["mean"] is not None:
            values = tuple(point["values"][key] for key in content["keys"])
            found.append((values, score["mean"], score["spread"] or 0.0))
    return found


def _labels(content: Mapping[str, Any]) -> list[str]:
    """Return what the systems at each place of the table are called."""
    by_place: list[list[str]] = []
    for point in finished(content):
        for place, row in enumerate(point["report"]["rows"]):
            if place == len(by_place):
                by_place.append([])
            by_place[place].append(row["system"])
    return [names[0] if len(set(names)) == 1 else _common_start(names) + "…" for names in by_place]


def _common_start(names: Sequence[str]) -> str:
    length = 0
    while all(len(n) > length and n[: length + 1] == names[0][: length + 1] for n in names):
        length += 1
    return names[0][:length]


def draw(content: Mapping[str, Any], path: Path) -> bool:
    """Draw scores against one swept key, as lines, or two, as a heat map for each system.

    Args:
        content: of :func:`build`.
        path: the PNG to write.

    Returns:
        Whether there was anything to draw: nothing is of more than two keys that have several
        values, or of fewer than two finished points.
    """
    points = finished(content)
    varied = [key for key in content["keys"] if len({p["values"][key] for p in points}) > 1]
    if not 1 <= len(varied) <= 2:
        return False
    content = {**content, "keys": varied}
    import matplotlib

    matplotlib.use("Agg")

    panels = [*content["metrics"][:1], _LOSS]
    figure = _lines(content, panels) if len(content["keys"]) == 1 else _maps(content, panels)
    save_figure(figure, path)
    return True


def _lines(content: Mapping[str, Any], panels: Sequence[str]) -> Any:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(10, 4), layout="constrained")
    (key,) = content["keys"]
    names = [point["values"][key] for point in finished(content)]
    numbers = [x for x in map(number, names) if x is not None]
    numeric = len(numbers) == len(names)
    places = dict(zip(names, numbers if numeric else range(len(names)), strict=True))
    for axis, metric in zip(axes, panels, strict=True):
        for place, label in enumerate(_labels(content)):
            series = sorted(
                (places[values[0]], mean, spread)
                for values, mean, spread in _series(content, place, metric)
            )
            if series:
                x, y, spread = zip(*series, strict=True)
                style = "-" if numeric else ""
                axis.errorbar(x, y, yerr=spread, fmt=f"o{style}", capsize=3, label=label)
        if not numeric:
            axis.set_xticks(range(len(names)), [shown(n) for n in names], rotation=30, ha="right")
        elif min(numbers) > 0 and max(numbers) >= _LOG_RANGE * min(numbers):
            axis.set_xscale("log")
            axis.set_xticks(numbers, [shown(n) for n in names])
            axis.minorticks_off()
        axis.set_xlabel(key)
        axis.set_ylabel(METRIC_NAMES.get(metric, f"{metric} (bits a token)"))
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.suptitle(content["sweep"])
    return figure


def _maps(content: Mapping[str, Any], panels: Sequence[str]) -> Any:
    from matplotlib import pyplot

    same = constant(content)
    labels = _labels(content)
    every = [point["report"]["rows"] for point in finished(content)]
    first = max(every, key=len)
    varying = [
        place
        for place in range(len(labels))
        if any(rows[place]["slug"] not in same for rows in every if place < len(rows))
    ] or list(range(len(labels)))
    down, across = content["keys"]
    points = finished(content)
    ys = list(dict.fromkeys(point["values"][down] for point in points))
    xs = list(dict.fromkeys(point["values"][across] for point in points))
    width = 1.6 + len(panels) * (1.6 + 0.8 * len(xs))
    height = 1.4 + len(varying) * (1 + 0.6 * len(ys))
    figure, axes = pyplot.subplots(
        len(varying), len(panels), squeeze=False, layout="constrained", figsize=(width, height)
    )
    for row, place in enumerate(varying):
        for axis, metric in zip(axes[row], panels, strict=True):
            found = {values: mean for values, mean, _ in _series(content, place, metric)}
            grid = [[found.get((y, x), math.nan) for x in xs] for y in ys]
            better = "viridis_r" if metric in (_LOSS, "ter") else "viridis"
            image = axis.imshow(grid, cmap=better, aspect="auto")
            digits = 2 if metric == _LOSS else 1
            low, high = image.get_clim()
            for i, line in enumerate(grid):
                for j, value in enumerate(line):
                    if not math.isnan(value):
                        part = (value - low) / (high - low) if high > low else 0.5
                        dark = part > 0.6 if better == "viridis_r" else part < 0.6
                        axis.text(j, i, f"{value:.{digits}f}", ha="center", va="center",
                                  color="white" if dark else "black")  # fmt: skip
            axis.set_xticks(range(len(xs)), [shown(x) for x in xs])
            axis.set_yticks(range(len(ys)), [shown(y) for y in ys])
            axis.set_xlabel(across)
            axis.set_ylabel(down)
            axis.set_title(f"{labels[place]}: {METRIC_NAMES.get(metric, metric)}")
    title = content["sweep"]
    for place, line in enumerate(first):
        if place not in varying:
            score = line["scores"][content["metrics"][0]]["mean"]
            name = METRIC_NAMES.get(content["metrics"][0], content["metrics"][0])
            title += f"; {labels[place]}: {name} {score:.1f}"
            if line["valid_loss"] is not None:
                title += f", valid loss {line['valid_loss']:.2f}"
    figure.suptitle(title)
    return figure
