"""A few short sentences on a CPU: where the number of operations is the cost, not what they do.

For one sentence of ten tokens, eight heads that write their slices one by one cost more than all
heads' n x n matrices in one product. The matrices depend on n alone and are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_fixed.attention.base import FixedHead, Head
from fairseq_fixed.layout import SequenceLayout

__all__ = ["few_and_short", "multiply"]

#: Positions of a batch, and of a sentence, up to which one product is the cheaper way.
FEW = 256
SHORT = 128

#: What decides a writing head's matrix beside n: class, number of heads, edge.
_Kind = tuple[type[Head], int, str | None]


def few_and_short(x: Tensor) -> bool:
    """Return whether (n, batch, channels) is a case for :func:`multiply`."""
    n, batch = x.shape[:2]
    return n <= SHORT and n * batch <= FEW and x.device.type == "cpu"


def multiply(runs: Sequence[Head], values: Tensor, layout: SequenceLayout) -> Tensor:
    """Return what heads that write would, (n, batch, channels), through their dense matrices."""
    heads = sum(run.num_heads for run in runs)
    kinds = tuple(
        (type(run), run.num_heads, run.edge if isinstance(run, FixedHead) else None) for run in runs
    )
    split = values.unflatten(2, (heads, -1)).permute(1, 2, 0, 3)  # (batch, heads, n, head_dim)
    out = torch.matmul(_matrices(kinds, layout, values.dtype), split)
    return out.permute(2, 0, 1, 3).flatten(2)


def _matrices(kinds: tuple[_Kind, ...], layout: SequenceLayout, dtype: torch.dtype) -> Tensor:
    """Return the heads' matrices, (batch or 1, heads, n, n)."""
    if layout.padding_mask is None:
        return _whole(kinds, layout.n, dtype)

    def make() -> Tensor:
        if not torch.equal(layout.inside.t(), layout.attendable):  # padding inside a sentence
            return _dense(kinds, layout, dtype)
        heads = sum(number for _, number, _ in kinds)
        out = torch.zeros(layout.batch, heads, layout.n, layout.n, dtype=dtype)
        spans = zip(layout.start.tolist(), layout.length.tolist(), strict=True)
        for matrix, (start, n) in zip(out, spans, strict=True):
            if n:
                span = slice(start, start + n)
                matrix[:, span, span] = _whole(kinds, n, dtype)[0]
        return out

    return layout.memo(("few", kinds, dtype), make)


@functools.lru_cache(maxsize=128)  # of n² numbers a head; 0.5 MB at most where there are eight
def _whole(kinds: tuple[_Kind, ...], n: int, dtype: torch.dtype) -> Tensor:
    """Return the matrices of a sentence of n tokens without padding, (1, heads, n, n)."""
    return _dense(kinds, SequenceLayout(None, shape=(1, n)), dtype)


def _dense(kinds: tuple[_Kind, ...], layout: SequenceLayout, dtype: torch.dtype) -> Tensor:
    heads = (
        cls(number, 1) if edge is None else cls(number, 1, edge=edge)  # type: ignore[call-arg]
        for cls, number, edge in kinds
    )
    with torch.inference_mode(False), torch.no_grad():  # kept, whatever mode it is made in
        return torch.cat([head.weights(layout, dtype=dtype) for head in heads], dim=1)
