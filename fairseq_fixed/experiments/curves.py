"""Learning curves as a picture: validation loss by updates and by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw_curves"]


def draw_curves(results: Sequence[Mapping[str, Any]], path: Path, *, title: str = "") -> None:
    """Draw every training's validation loss; seeds of a system share a colour.

    Args:
        results: of :func:`results.make_result`.
        path: the PNG to write.
        title: above both pictures.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    colours: dict[str, str] = {}
    for result in results:
        first = result["slug"] not in colours
        colour = colours.setdefault(result["slug"], f"C{len(colours) % 10}")
        points = [p for p in result["curve"] if "loss" in p]
        losses = [p.get("nll_loss", p["loss"]) for p in points]
        for axis, by in (
            (axes[0], [p["update"] for p in points]),
            (axes[1], [p.get("wall", 0) / 60 for p in points]),
        ):
            axis.plot(
                by,
                losses,
                color=colour,
                marker=".",
                linewidth=1.2,
                alpha=0.9,
                label=result["system"] if first else None,
            )
    axes[0].set_xlabel("updates")
    axes[1].set_xlabel("minutes of training")
    axes[0].set_ylabel("validation loss (bits a token)")
    for axis in axes:
        axis.grid(alpha=0.3)
    if colours:
        axes[0].legend()
    if title:
        figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    figure.savefig(draft, dpi=130, format="png")
    pyplot.close(figure)
    draft.replace(path)
