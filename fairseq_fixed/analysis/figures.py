"""Pictures of trained heads: where they attend to, and TISA's functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_fixed.analysis.trained import REACH, HeadProfile

__all__ = ["draw_functions", "draw_profiles"]

_INK, _BAR, _FAINT = "#24292f", "#0969da", "#d0d7de"


def draw_profiles(profiles: Sequence[HeadProfile], path: Path) -> Path:
    """Draw each head's mean weight by offset j - i, a row of panels a layer."""
    from matplotlib.figure import Figure

    layers = 1 + max(p.layer for p in profiles)
    heads = 1 + max(p.head for p in profiles)
    figure = Figure(figsize=(1.55 * heads + 0.6, 1.5 * layers + 0.6), layout="constrained")
    axes = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
    offsets = range(-REACH, REACH + 1)
    highest = max(max(p.offsets) for p in profiles)
    for profile in profiles:
        axis = axes[profile.layer, profile.head]
        axis.axvline(0, color=_FAINT, linewidth=0.8, zorder=0)
        axis.bar(offsets, profile.offsets, width=0.9, color=_BAR)
        axis.set_ylim(0, min(1.0, 1.25 * highest + 0.01))
        axis.set_title(profile.kind, fontsize=8, color=_INK)
        axis.text(
            0.97, 0.93, f"{profile.pattern}\n{profile.difference:.2f}",
            transform=axis.transAxes, ha="right", va="top", fontsize=7, color=_INK,
        )  # fmt: skip
        _plain(axis)
    for layer in range(layers):
        axes[layer, 0].set_ylabel(f"layer {layer}", fontsize=8, color=_INK)
    figure.supxlabel(
        "offset j - i of the token attended to; in each panel the nearest fixed pattern and its "
        "difference (0: the same)",
        fontsize=8,
        color=_INK,
    )
    return _save(figure, path)


def draw_functions(functions: Mapping[str, Sequence[float]], path: Path) -> Path:
    """Draw TISA's f(k) of each head, a panel a layer."""
    from matplotlib.figure import Figure

    layers: dict[str, list[tuple[str, Sequence[float]]]] = {}
    for name, values in functions.items():
        layer, head = name.split(" head ")
        layers.setdefault(layer, []).append((head, values))
    figure = Figure(figsize=(3.2 * len(layers) + 0.8, 2.8), layout="constrained")
    axes = figure.subplots(1, len(layers), squeeze=False, sharey=True)[0]
    for axis, (layer, curves) in zip(axes, layers.items(), strict=True):
        for head, values in curves:
            reach = len(values) // 2
            axis.plot(range(-reach, reach + 1), values, label=f"head {head}", linewidth=1.2)
        axis.axhline(0, color=_FAINT, linewidth=0.8, zorder=0)
        axis.set_title(layer, fontsize=9, color=_INK)
        axis.set_xlabel("k = j - i", fontsize=8, color=_INK)
        _plain(axis)
    axes[0].set_ylabel("f(k), added to the score", fontsize=8, color=_INK)
    axes[-1].legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return _save(figure, path)


def _plain(axis: Any) -> None:
    axis.tick_params(labelsize=7, colors=_INK)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path
