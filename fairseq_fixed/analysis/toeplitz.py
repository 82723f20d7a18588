"""How close a matrix is to translation-invariant: its projection on Toeplitz matrices.

The analysis of Wennberg and Henter (arXiv 2106.01950): of trained position embeddings E_P, how much
of E_P E_Pᵀ depends on the distance j - i alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_fixed.attention.tisa import toeplitz

__all__ = ["diagonal_means", "nearest_toeplitz", "toeplitz_r2"]


def diagonal_means(matrix: Tensor) -> Tensor:
    """Return the mean along each diagonal, (…, 2n - 1), from j - i = -(n - 1) to n - 1.

    Args:
        matrix: (…, n, n), floating point; computed in float64.
    """
    n = matrix.shape[-1]
    position = torch.arange(n, device=matrix.device)
    index = (position - position[:, None] + n - 1).flatten()
    sums = matrix.new_zeros(*matrix.shape[:-2], 2 * n - 1, dtype=torch.float64)
    sums.index_add_(-1, index, matrix.double().flatten(-2))
    return sums / (n - torch.arange(1 - n, n, device=matrix.device).abs())


def nearest_toeplitz(matrix: Tensor) -> Tensor:
    """Return the Toeplitz matrix that is nearest in the Frobenius norm, (…, n, n) float64."""
    return toeplitz(diagonal_means(matrix))


def toeplitz_r2(matrix: Tensor, *, border: int = 0, diagonal: bool = True) -> Tensor:
    """Return the share of a matrix's variance that its nearest Toeplitz matrix explains.

    1 for a matrix that depends on j - i alone. For E Eᵀ with independent random rows of d channels
    about d / (d + n), because of the constant main diagonal, and about 2 / n without it.

    Args:
        matrix: (…, n, n).
        border: rows and columns left out at each end: embeddings of the first positions, and of
            those that training hardly saw, differ from the others.
        diagonal: whether the main diagonal counts.

    Returns:
        (…) float64; 1 where there is nothing to explain.

    Raises:
        ValueError: nothing is left between the borders.
    """
    n = matrix.shape[-1]
    if border < 0 or n - 2 * border < 2:
        raise ValueError(
            f"a border of {border} leaves {max(0, n - 2 * border)} of {n} positions; at least 2 "
            "have to remain"
        )
    inner = matrix[..., border : n - border, border : n - border].double()
    rest = inner - nearest_toeplitz(inner)
    counted = torch.ones(inner.shape[-2:], dtype=torch.bool, device=matrix.device)
    if not diagonal:
        counted.fill_diagonal_(False)
    values, residuals = inner[..., counted], rest[..., counted]
    whole = (values - values.mean(-1, keepdim=True)).square().sum(-1)
    left = residuals.square().sum(-1)
    # of a constant matrix only rounding remains
    nothing = whole <= 1e-24 * values.square().sum(-1)
    return torch.where(nothing, 1.0, 1 - left / whole.masked_fill(nothing, 1))
