"""Products of a band matrix with values, in O(n · width), never as an n x n matrix.

Both have their own backward passes: autograd's would keep and fill a padded copy of the values
for every diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["band_product", "toeplitz_product"]

#: Up to this many diagonals are added one by one; more of them run as products of dense blocks.
FEW = 32
#: Rows that share one product; at least the band's own width, so that a window is never more
#: than twice its block.
BLOCK = 64


def toeplitz_product(x: Tensor, taps: Sequence[float], low: int) -> Tensor:
    """Return out[i] = Σ_k taps[k] · x[i + low + k], where x is zero outside 0 … n-1.

    No differences of prefix sums: those cancel where weights are small.

    Args:
        x: (n, batch, channels), float32 or float64.
        taps: one number for each distance j - i.
        low: distance of the first tap.
    """
    first, last = max(0, 1 - len(x) - low), min(len(taps), len(x) - low)
    return _ToeplitzProduct.apply(x, tuple(taps[first : max(first, last)]), low + first)


class _ToeplitzProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: tuple[float, ...], low: int) -> Tensor:
        ctx.taps, ctx.low = taps, low
        return _toeplitz(x, taps, low)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        # the transpose: distances change their sign
        return _toeplitz(grads[0], ctx.taps[::-1], 1 - ctx.low - len(ctx.taps)), None, None


def _toeplitz(x: Tensor, taps: tuple[float, ...], low: int) -> Tensor:
    if len(taps) > FEW:
        return _toeplitz_in_blocks(x, taps, low)
    out = torch.zeros_like(x)
    for k, tap in enumerate(taps, low):
        rows, columns = _overlap(len(x), k)
        out[rows].add_(x[columns], alpha=tap)
    return out


def _toeplitz_in_blocks(x: Tensor, taps: tuple[float, ...], low: int) -> Tensor:
    """Multiply windows of x, one a block of rows, by the same block x (block + K - 1) matrix."""
    n, batch, channels = x.shape
    width = len(taps)
    block = min(n, max(BLOCK, width))
    blocks = -(-n // block)
    window = block + width - 1
    # row r is the taps moved right by r: rows one element shorter than what repeats
    repeated = F.pad(x.new_tensor(taps), (0, block)).repeat(block)
    matrix = repeated[: block * window].view(block, window)
    # row t is x[low + t]; a negative pad cuts
    padded = F.pad(x.flatten(1), (0, 0, -low, blocks * block - n + low + width - 1))
    windows = padded.unfold(0, window, block).transpose(1, 2)  # (blocks, window, batch * channels)
    out = torch.bmm(matrix.expand(blocks, -1, -1), windows)
    return out.flatten(0, 1)[:n].view(n, batch, channels)


def _overlap(n: int, k: int) -> tuple[slice, slice]:
    """Return the query rows i and the key rows i + k that a sentence of n has; |k| < n."""
    return slice(max(0, -k), n - max(0, k)), slice(max(0, k), n - max(0, -k))


class _BandProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, band: Tensor) -> Tensor:
        ctx.save_for_backward(band)
        out = torch.zeros_like(values)
        for diagonal, rows, columns in _diagonals(band):
            out[rows].addcmul_(values[columns], band[rows][..., diagonal, None])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (band,) = ctx.saved_tensors
        out = torch.zeros_like(grads[0])
        for diagonal, rows, columns in _diagonals(band):
            out[columns].addcmul_(grads[0][rows], band[rows][..., diagonal, None])
        return out, None


def _diagonals(band: Tensor) -> list[tuple[int, slice, slice]]:
    """Return (index, query rows, key rows) of every diagonal that the sentence has."""
    n, width = band.shape[0], band.shape[-1] // 2
    return [(k + width, *_overlap(n, k)) for k in range(-width, width + 1) if abs(k) < n]


def band_product(values: Tensor, band: Tensor) -> Tensor:
    """Return out[i] = Σ_{k=-W..W} band[i, …, k + W] · values[i + k].

    Differentiable in `values` alone.

    Args:
        values: (n, batch, heads, head_dim), of the band's dtype.
        band: (n, batch, heads, 2W + 1).
    """
    return _BandProduct.apply(values, band)
