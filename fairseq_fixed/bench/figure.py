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
    panels = [("seconds", "time a sentence (s)")]
    if any(cost is not None for _, curves in rows for curve in curves for cost in curve.bytes):
        panels.append(("bytes", "peak extra memory a sentence (bytes)"))
    size = (2 + 6 * len(panels), 4 * len(rows))
    figure, axes = pyplot.subplots(
        len(rows), len(panels), figsize=size, squeeze=False, layout="constrained"
    )
    measured = "time, memory" if len(panels) > 1 else "time"
    for (title, curves), row in zip(rows, axes, strict=True):
        for axis, (what, label) in zip(row, panels, strict=True):
            _panel(axis, curves, what, colours)
            axis.set_ylabel(label)
        row[0].set_title(title, fontsize=10, loc="left")
        # beside the panels, where it hides nothing
        row[-1].legend(
            *_legend(row[0], curves, fit_from),
            title=f"exponents of {measured}\nfrom n = {fit_from:g}",
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
