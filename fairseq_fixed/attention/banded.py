"""Products of a band matrix with values, in O(n · width), never as an n x n matrix."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_fixed.layout import SequenceLayout

__all__ = ["band_product", "toeplitz_product"]

#: Rows that share one product with a small dense matrix; at least the band's own width, so that
#: a window is never more than twice its block.
BLOCK = 64


def toeplitz_product(
    x: Tensor, taps: Tensor, low: int, layout: SequenceLayout, key: Hashable
) -> Tensor:
    """Return out[i] = Σ_k taps[k] · x[i + low + k], where x is zero outside 0 … n-1.

    Rows run in blocks; each block is one product of the same block x (block + K - 1) matrix with
    a window of x. Such products run at the speed of BLAS, while K shifted additions read and
    write memory K times. No differences of prefix sums: those cancel where weights are small.

    Args:
        x: (n, batch, channels), float32 or float64.
        taps: (K,), of x's dtype.
        low: distance j - i of the first tap.
        layout: of the batch; keeps the small matrix.
        key: what decides `taps` and `low` apart from the layout.
    """
    n, batch, channels = x.shape
    first, last = max(0, 1 - n - low), min(len(taps), n - low)
    if first >= last:  # the band lies outside; still a function of x, with gradient zero
        return x.masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 0)
    taps, low = taps[first:last], low + first
    width = len(taps)
    block = min(n, max(BLOCK, width))
    blocks = -(-n // block)
    window = block + width - 1

    def matrix() -> Tensor:
        # row r is the taps moved right by r: rows one element shorter than what repeats
        repeated = F.pad(taps, (0, block)).repeat(block)
        return repeated[: block * window].view(block, window)

    small = layout.memo(("toeplitz", key, x.dtype), matrix)
    # row t is x[low + t]; a negative pad cuts
    padded = F.pad(x.flatten(1), (0, 0, -low, blocks * block - n + low + width - 1))
    windows = padded.unfold(0, window, block).transpose(1, 2)  # (blocks, window, batch * channels)
    out = torch.bmm(small.expand(blocks, -1, -1), windows)
    return out.flatten(0, 1)[:n].view(n, batch, channels)


class _BandProduct(torch.autograd.Function):
    """The product with a band whose weights differ by token and need no gradient.

    Autograd's own would keep and fill a padded copy of the values for every diagonal.
    """

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
    return [
        (k + width, slice(max(0, -k), n - max(0, k)), slice(max(0, k), n - max(0, -k)))
        for k in range(-width, width + 1)
        if abs(k) < n
    ]


def band_product(values: Tensor, band: Tensor) -> Tensor:
    """Return out[i] = Σ_{k=-W..W} band[i, …, k + W] · values[i + k].

    Differentiable in `values` alone.

    Args:
        values: (n, batch, heads, head_dim), of the band's dtype.
        band: (n, batch, heads, 2W + 1).
    """
    return _BandProduct.apply(values, band)
