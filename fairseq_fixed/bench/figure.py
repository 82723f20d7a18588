"""Cost against length as a picture: time and memory, a line a contender."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fairseq_fixed.bench.curves import FIT_FROM, Curve, families
from fairseq_fixed.bench.errors import BenchError

__all__ = ["draw_costs"]


def draw_costs(
    cases: Iterable[Mapping[str, Any]],
    path: Path,
    *,
    fit_from: float = FIT_FROM,
    shown: Callable[[Curve], bool] = lambda curve: True,
) -> None:
    """Draw cost a sentence against its length, both axes logarithmic; a row of panels a family.

    Ours are solid, peers dashed. The legend has the exponents fitted from `fit_from` on, of time
    and memory.

    Args:
        cases: of records of `attention` or `encoder`; those of a mix of lengths are left out.
        path: the PNG to write.
        fit_from: shortest length that a fit sees.
        shown: whether to draw a contender's curve.

    Raises:
        BenchError: no case of one length.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = []
    for family in families(cases):
        curves = [c for c in family.curves() if shown(c)]
        if curves:
            rows.append((family.title, curves))
    if not rows:
        raise BenchError("no figure: there is no case of one length (--lengths 256,1024,…)")
    palette = [pyplot.get_cmap(name)(i) for name in ("tab10", "Dark2") for i in range(8)]
    colours: dict[str, Any] = {}
    for _, curves in rows:
        for curve in curves:
            colours.setdefault(curve.name, palette[len(colours) % len(palette)])
    figure, axes = pyplot.subplots(
        len(rows), 2, figsize=(14, 4 * len(rows)), squeeze=False, layout="constrained"
    )
    for (title, curves), (left, right) in zip(rows, axes, strict=True):
        _panel(left, curves, "seconds", colours)
        _panel(right, curves, "bytes", colours)
        left.set_title(title, fontsize=10, loc="left")
        left.set_ylabel("time a sentence (s)")
        right.set_ylabel("peak extra memory a sentence (bytes)")
        # beside the panels, where it hides nothing
        right.legend(
            *_legend(left, curves, fit_from),
            title=f"exponents of time, memory\nfrom n = {fit_from:g}",
            fontsize=8,
            title_fontsize=8,
            loc="upper left",
            bbox_to_anchor=(1.02, 1.0),
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    figure.savefig(draft, dpi=120, format="png")
    pyplot.close(figure)
    draft.replace(path)


def _legend(axis: Any, curves: list[Curve], fit_from: float) -> tuple[list[Any], list[str]]:
    """Return the lines of a panel and what to call them."""
    lines = dict(zip(axis.get_legend_handles_labels()[1], axis.lines, strict=True))
    labels = []
    for curve in curves:
        fits = [curve.fit(what, fit_from) for what in ("seconds", "bytes")]
        exponents = ", ".join(f"{fit.exponent:.2f}" for fit in fits if fit is not None)
        labels.append(f"{curve.name}: {exponents}" if exponents else curve.name)
    return [lines[curve.name] for curve in curves], labels


def _panel(axis: Any, curves: list[Curve], what: str, colours: Mapping[str, Any]) -> None:
    from matplotlib.ticker import NullLocator

    for curve in curves:
        points = [
            (n, cost)
            for n, cost in zip(curve.lengths, getattr(curve, what), strict=True)
            if cost is not None
        ]
        axis.plot(
            [n for n, _ in points],
            [cost for _, cost in points],
            color=colours[curve.name],
            linestyle="-" if curve.ours else "--",
            linewidth=2 if curve.ours else 1.2,
            marker="o" if curve.ours else ".",
            markersize=4,
            label=curve.name,
        )
    lengths = sorted({n for curve in curves for n in curve.lengths})
    axis.set_xscale("log", base=2)
    if all(cost is None for curve in curves for cost in getattr(curve, what)):
        axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes)
    else:
        axis.set_yscale("log")
    axis.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("length n (tokens)")
    axis.grid(alpha=0.3, which="both", linewidth=0.5)
