"""Attention matrices projected on bands, and on bands plus few further entries.

Conti (arXiv 2409.00068): a trained head's attention matrix H is close to I · P + Ẽ with a
structured P and a sparse Ẽ, |ẽ_ij| ≤ ε. On band matrices of half-width w the nearest one, entry by
entry and so in the 1-norm and the Frobenius norm alike, is H with what lies outside the band set to
zero; with K further entries a row, it keeps the largest of those, up to ε. Both are exact: nothing
is searched.

:func:`nearest_draw` is the paper's own validation, a random search, for comparison.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Draw",
    "distance",
    "draw_rare",
    "draw_syntactic",
    "nearest_draw",
    "project_band",
    "project_band_sparse",
]


def _outside(n: int, w: int, device: torch.device) -> Tensor:
    position = torch.arange(n, device=device)
    return (position - position[:, None]).abs() > w


def _check(w: int, name: str = "w") -> None:
    if w < 0:
        raise ValueError(f"{name} is {w}; it cannot be negative")


def project_band(matrix: Tensor, w: int) -> Tensor:
    """Return the nearest band matrix of half-width w.

    Args:
        matrix: (…, n, n).
        w: entries with |i - j| > w are zero.

    Raises:
        ValueError: a negative w.
    """
    _check(w)
    return matrix.masked_fill(_outside(matrix.shape[-1], w, matrix.device), 0)


def project_band_sparse(matrix: Tensor, w: int, k: int, epsilon: float = math.inf) -> Tensor:
    """Return the nearest band matrix with at most k further entries a row, none above ε.

    Args:
        matrix: (…, n, n), not negative.
        w: half-width of the band.
        k: entries outside it that a row may have.
        epsilon: bound of those entries; what is above it is set to it.

    Raises:
        ValueError: a negative w or k, or a negative bound.
    """
    _check(w)
    _check(k, "k")
    if epsilon < 0:
        raise ValueError(f"epsilon is {epsilon}; it cannot be negative")
    n = matrix.shape[-1]
    outside = matrix.masked_fill(~_outside(n, w, matrix.device), 0)
    chosen = outside.topk(min(k, n), dim=-1).indices
    # what has no entry outside the band chooses zeros
    kept = torch.zeros_like(matrix).scatter(-1, chosen, outside.gather(-1, chosen))
    return project_band(matrix, w) + kept.clamp(max=epsilon)


def distance(one: Tensor, other: Tensor) -> Tensor:
    """Return Σ_ij |h_ij - x_ij|, (…)."""
    return (one - other).abs().sum((-2, -1))


def draw_syntactic(
    n: int, w: int, generator: torch.Generator, *, p: float = 0.4, low: float = 0.7
) -> Tensor:
    """Draw from Σ₂(w): entries of the band from U(low, 1), dropped with p; rows sum to one.

    A row of which everything is dropped stays zero. The paper also adds sparse noise, whose size
    it does not give: none here.
    """
    _check(w)
    values = low + (1 - low) * torch.rand(n, n, generator=generator, dtype=torch.float64)
    kept = torch.rand(n, n, generator=generator, dtype=torch.float64) >= p
    band = project_band(values * kept, w)
    total = band.sum(-1, keepdim=True)
    return band / total.masked_fill(total == 0, 1)


def draw_rare(n: int, w: int, num_pos: int, generator: torch.Generator) -> Tensor:
    """Draw from Σ₃(T, w): the identity, but the tokens within w of each t in T attend to t.

    T are `num_pos` positions drawn at random, none twice; where their neighbourhoods meet, the
    token attends to the nearest, the left one of two.
    """
    _check(w)
    if not 0 < num_pos <= n:
        raise ValueError(f"num_pos is {num_pos}; of {n} tokens there can be 1 to {n}")
    rare = torch.randperm(n, generator=generator)[:num_pos].sort().values
    gap = (torch.arange(n)[:, None] - rare).abs()
    nearest = gap.argmin(-1)
    target = torch.where(gap.amin(-1) <= w, rare[nearest], torch.arange(n))
    return torch.nn.functional.one_hot(target, n).double()


class Draw(NamedTuple):
    """The best of a random search: its distance from the matrix, and the set it is of."""

    distance: float
    family: str


def nearest_draw(matrix: Tensor, w: int, num_pos: int, *, draws: int = 30, seed: int = 0) -> Draw:
    """Return the nearest of the identity and `draws` matrices from each of Σ₂ and Σ₃.

    Args:
        matrix: (n, n).
        w: half-width.
        num_pos: rare tokens; 0: no draws from Σ₃.
        draws: from each set.
        seed: of the draws.
    """
    matrix = matrix.double()
    n = matrix.shape[-1]
    generator = torch.Generator().manual_seed(seed)
    best = Draw(float(distance(matrix, torch.eye(n, dtype=torch.float64))), "identity")
    for _ in range(draws):
        drawn = [("band", draw_syntactic(n, w, generator))]
        if num_pos:
            drawn.append(("rare tokens", draw_rare(n, w, num_pos, generator)))
        for family, candidate in drawn:
            best = min(best, Draw(float(distance(matrix, candidate)), family))
    return best
