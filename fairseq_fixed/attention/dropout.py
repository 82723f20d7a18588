"""Scaled dot-product attention with dropout of its weights, on a CPU, in O(n) memory.

torch's fused CPU attention has no dropout: with it, all weights are kept, and most of the time
goes into drawing one random number for each. Here rows of queries run in chunks, nothing of size
n x n is kept (the backward pass draws the same numbers again), and a random word serves four
weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["dropout_attention", "serves"]

#: Weights of a chunk: few enough to stay in the cache.
CHUNK = 1 << 19
#: Rows of a chunk, at least: products of fewer run well below the speed of larger ones.
ROWS = 64
#: Dropout probabilities are multiples of this: sixteen random bits decide on a weight.
RESOLUTION = 1 << 16


def serves(q: Tensor) -> bool:
    """Return whether :func:`dropout_attention` is the better choice for such queries."""
    return q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)


def dropout_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """Return dropout(softmax(q kᵀ / √d + mask)) v.

    Args:
        q: (batch, heads, n, d), as are k and v; d is scaled by.
        k: of the same shape.
        v: of the same shape.
        mask: what is added to the scores, (batch or 1, heads or 1, n or 1, n), or None; no
            gradient flows to it.
        p: probability that a weight is dropped, 0 < p < 1, rounded to 1/65536; what is kept is
            scaled by 1 / (1 - p).

    Returns:
        (batch, heads, n, d).
    """
    return _DropoutAttention.apply(q, k, v, mask, p)


class _Dropper:
    """Drops weights, chunk by chunk; made again from the same seed, it drops the same ones."""

    def __init__(self, p: float, seed: int) -> None:
        dropped = min(max(round(p * RESOLUTION), 0), RESOLUTION - 1)
        self.threshold = dropped - RESOLUTION // 2
        self.scale = RESOLUTION / (RESOLUTION - dropped)
        self.generator = torch.Generator().manual_seed(seed)

    def kept(self, like: Tensor) -> Tensor:
        """Return 1 for each of the next weights that is kept, else 0, as `like`."""
        words = torch.empty(-(-like.numel() // 4), dtype=torch.int64)
        words.random_(-(1 << 63), None, generator=self.generator)
        bits = words.view(torch.int16)[: like.numel()].view(like.shape)
        # compared in place, and multiplied by: boolean masks are several times slower
        return bits.ge_(self.threshold).to(like.dtype)


def _flat(x: Tensor) -> Tensor:
    """View (batch, heads, n, d) as (batch · heads, n, d); copies where strides do not allow it."""
    return x.permute(2, 0, 1, 3).flatten(1, 2).transpose(0, 1)


def _chunks(batch: int, heads: int, n: int) -> Iterator[tuple[slice, slice]]:
    """Cut (batch, n) into rows of several sentences: products run sentence by sentence at once."""
    rows = min(n, max(ROWS, CHUNK // max(1, batch * heads * n)))
    sentences = max(1, CHUNK // max(1, heads * rows * n))
    for first in range(0, batch, sentences):
        for start in range(0, n, rows):
            yield slice(first, min(first + sentences, batch)), slice(start, min(start + rows, n))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b, batch by batch; a single product runs on all cores only as such."""
    return torch.mm(a[0], b[0])[None] if len(a) == 1 else torch.bmm(a, b)


def _weights(q: Tensor, k: Tensor, mask: Tensor | None, heads: int) -> Tensor:
    """Return softmax(q kᵀ / √d + mask), (sentences · heads, rows, n)."""
    scores = _product(q / math.sqrt(q.shape[-1]), k.transpose(1, 2))
    if mask is not None:
        scores.unflatten(0, (-1, heads)).add_(mask)
    return torch.softmax(scores, -1, out=scores)


def _part(mask: Tensor | None, sentences: slice, rows: slice) -> Tensor | None:
    if mask is None:
        return None
    mask = mask if mask.shape[0] == 1 else mask[sentences]
    return mask if mask.shape[2] == 1 else mask[:, :, rows]


class _DropoutAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float) -> Tensor:
        ctx.shape, ctx.p = q.shape[:2], p
        # from torch's own stream, so that seeds and activation checkpointing work as elsewhere
        ctx.seed = int(torch.randint(1 << 62, ()))
        drop = _Dropper(p, ctx.seed)
        queries, keys, values = _flat(q), _flat(k), _flat(v)
        batch, heads, n, d = q.shape
        out = q.new_empty(n, batch * heads, d).transpose(0, 1)
        for sentences, rows in _chunks(batch, heads, n):
            some = slice(sentences.start * heads, sentences.stop * heads)
            part = _part(mask, sentences, rows)
            weights = _weights(queries[some, rows], keys[some], part, heads)
            weights.mul_(drop.kept(weights))
            out[some, rows] = _product(weights, values[some]).mul_(drop.scale)
        ctx.save_for_backward(queries, keys, values, mask, out)
        return out.unflatten(0, ctx.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, out = ctx.saved_tensors
        drop = _Dropper(ctx.p, ctx.seed)
        grad = _flat(grads[0])
        scale = 1 / math.sqrt(q.shape[-1])
        grad_q, grad_k, grad_v = (torch.empty_like(x) for x in (q, k, v))
        # Σ_j w_ij · dw_ij of the softmax's gradient, without the weights
        along = (grad * out).sum(-1, keepdim=True)
        batch, heads = ctx.shape
        for sentences, rows in _chunks(batch, heads, q.shape[1]):
            some = slice(sentences.start * heads, sentences.stop * heads)
            weights = _weights(q[some, rows], k[some], _part(mask, sentences, rows), heads)
            kept = drop.kept(weights)
            mine = grad[some, rows] * drop.scale
            scores = _product(mine, v[some].transpose(1, 2)).mul_(kept)
            scores.sub_(along[some, rows]).mul_(weights)
            weights.mul_(kept)
            grad_q[some, rows] = _product(scores, k[some]).mul_(scale)
            for total, left, right in (
                (grad_k, scores, q[some, rows] * scale),
                (grad_v, weights, mine),
            ):
                part = _product(left.transpose(1, 2), right)
                total[some].copy_(part) if rows.start == 0 else total[some].add_(part)
        return *(x.unflatten(0, ctx.shape) for x in (grad_q, grad_k, grad_v)), None, None
