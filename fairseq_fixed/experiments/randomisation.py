"""Paired approximate randomisation: could two systems have swapped their translations?

As sacrebleu's, with its random numbers, but for what counts as far apart. sacrebleu counts the
trials that lie *further* apart than the two systems; Riezler and Maxwell (2005, figure 1) count
those that lie *at least* as far apart. Where few sentences differ, many trials lie exactly as far:
two systems that differ in three sentences of 200, each time for the better, get p = 0.0005 from
2,000 trials of the first, and 0.25 from the second, which is the exact value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairseq_fixed.experiments.counts import score_of, summed

__all__ = ["paired_randomisation"]

_ROUNDING = 1e-9  # of scores: equal differences of different scores differ in their last digits


def paired_randomisation(
    metric: Any, baseline: np.ndarray, system: np.ndarray, *, trials: int, seed: int | None
) -> float:
    """Return the two-sided p-value of the difference of two systems' corpus scores.

    Args:
        metric: one of sacrebleu's.
        baseline: of `counts.count`, (sentences, columns).
        system: the same, of the other system.
        trials: in how many every sentence's two translations change places or do not.
        seed: of the random numbers; None: others each time.
    """
    draw = np.random.default_rng(seed)
    stays = draw.integers(2, size=(trials, len(baseline)), dtype=bool)
    total = baseline.sum(0) + system.sum(0)
    first = summed(stays, baseline - system) + system.sum(0)

    def apart(one: np.ndarray) -> float:
        return abs(score_of(metric, one) - score_of(metric, total - one))

    observed = apart(baseline.sum(0)) - _ROUNDING
    far = sum(apart(sums) >= observed for sums in first)
    return (far + 1) / (trials + 1)
