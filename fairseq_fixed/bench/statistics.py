"""Medians with their spread, ratios of rounds, and exponents of cost against length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy

__all__ = ["Fit", "Spread", "fit_exponent", "ratio_spread", "spread"]


@dataclass(frozen=True)
class Spread:
    """A sample's median, quartiles and extremes."""

    median: float
    q1: float
    q3: float
    min: float
    max: float

    def as_dict(self, digits: int = 5) -> dict[str, float]:
        """Return the figures by name, rounded to significant digits."""
        return {name: float(f"{value:.{digits}g}") for name, value in asdict(self).items()}


def spread(samples: Sequence[float]) -> Spread:
    """Return a sample's spread; quartiles are interpolated.

    Raises:
        ValueError: an empty sample.
    """
    if not samples:
        raise ValueError("no samples")
    low, q1, median, q3, high = numpy.percentile(samples, [0, 25, 50, 75, 100]).tolist()
    return Spread(median=median, q1=q1, q3=q3, min=low, max=high)


def ratio_spread(peer: Sequence[float], ours: Sequence[float]) -> Spread:
    """Return the spread of peer/ours, round by round: above 1 where ours costs less.

    What slows the machine down for a while slows both runs of a round, so ratios vary less than
    times do.

    Raises:
        ValueError: samples of different rounds.
    """
    return spread([p / o for p, o in zip(peer, ours, strict=True)])


@dataclass(frozen=True)
class Fit:
    """cost = factor · length ** exponent, through `points` points."""

    exponent: float
    factor: float
    points: int


def fit_exponent(
    lengths: Sequence[float], costs: Sequence[float], *, fit_from: float = 0
) -> Fit | None:
    """Fit a line to log cost against log length by least squares.

    Args:
        lengths: of the cases.
        costs: time or memory, one a length.
        fit_from: shorter lengths are left out: overheads that do not depend on it rule there.

    Returns:
        The fit, or None where fewer than two different lengths are left.
    """
    points = [
        (math.log(n), math.log(cost))
        for n, cost in zip(lengths, costs, strict=True)
        if n >= fit_from and cost > 0
    ]
    if len({x for x, _ in points}) < 2:
        return None
    x, y = numpy.array(points).T
    slope, intercept = numpy.polyfit(x, y, 1)
    return Fit(float(slope), math.exp(intercept), len(points))
