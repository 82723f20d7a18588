"""Learning curves as a picture: validation loss, and score where there is one, by updates and time.

All systems and seeds in one figure; a seed's best validation is a dot. Time is at a training's own
median pace: where the machine stood still, nothing was learned nor computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.figures import save_figure
from fairseq_fixed.experiments.speed import loss_of, losses_of, seconds_an_update

__all__ = ["draw_curves"]

_Value = Callable[[Mapping[str, float]], float | None]


def draw_curves(
    results: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    title: str = "",
    baseline: str | None = None,
) -> None:
    """Draw every training's validations; seeds of a system share a colour.

    Args:
        results: of :func:`results.make_result`.
        path: the PNG to write.
        title: above the pictures.
        baseline: the slug of the system whose lowest loss, of each seed, is drawn as a level.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows: list[tuple[str, _Value, Callable]] = [("validation loss (bits a subword)", loss_of, min)]
    if any("bleu" in point for result in results for point in result["curve"]):
        rows.append(("validation BLEU", lambda point: point.get("bleu"), max))
    figure, axes = pyplot.subplots(
        len(rows), 2, figsize=(10, 4 * len(rows)), sharey="row", squeeze=False, layout="constrained"
    )
    slugs = list(dict.fromkeys(result["slug"] for result in results))
    for (label, value, best), (by_updates, by_time) in zip(rows, axes, strict=True):
        for result in results:
            colour = f"C{slugs.index(result['slug']) % 10}"
            first = result is next(r for r in results if r["slug"] == result["slug"])
            _draw(by_updates, by_time, result, value, best, colour, first)
            if result["slug"] == baseline and value is loss_of:
                _draw_level(by_updates, by_time, result, colour)
        if value is loss_of:
            _leave_out_the_fall(by_updates, results)
        by_updates.set_ylabel(label)
        for axis in (by_updates, by_time):
            axis.grid(alpha=0.3)
    axes[-1][0].set_xlabel("updates")
    axes[-1][1].set_xlabel("minutes of training, at its median pace")
    if axes[0][0].get_legend_handles_labels()[0]:
        axes[0][0].legend()
    if title:
        figure.suptitle(title)
    save_figure(figure, path)


def _draw(
    by_updates: Any,
    by_time: Any,
    result: Mapping[str, Any],
    value: _Value,
    best: Callable,
    colour: str,
    first: bool,
) -> None:
    """Draw one training; the first of its system gets a label."""
    points = [(y, p) for p in result["curve"] if (y := value(p)) is not None]
    if not points:
        return
    top, place = best(points, key=lambda pair: pair[0])
    pace = seconds_an_update(result["curve"])
    for axis, scale in ((by_updates, 1.0), (by_time, None if pace is None else pace / 60)):
        if scale is None:
            continue
        axis.plot(
            [p["update"] * scale for _, p in points],
            [y for y, _ in points],
            color=colour,
            linewidth=1.1,
            alpha=0.8,
            label=result["system"] if first else None,
        )
        axis.plot(place["update"] * scale, top, "o", color=colour, markersize=4)


def _leave_out_the_fall(axis: Any, results: Sequence[Mapping[str, Any]]) -> None:
    """Cut the axis off above where the first eighth of a training has brought the loss.

    The first fall is the same for all, and so long that it would hide what tells them apart.
    """
    curves = [[loss for loss, _ in losses_of(result["curve"])] for result in results]
    curves = [losses for losses in curves if losses]
    if curves:
        top = max(losses[len(losses) // 8] for losses in curves)
        low = min(min(losses) for losses in curves)
        if top > low:
            margin = 0.05 * (top - low)
            axis.set_ylim(low - margin, top + margin)


def _draw_level(by_updates: Any, by_time: Any, result: Mapping[str, Any], colour: str) -> None:
    losses = [loss for loss, _ in losses_of(result["curve"])]
    if losses:
        for axis in (by_updates, by_time):
            axis.axhline(min(losses), color=colour, linewidth=0.7, linestyle=":")
