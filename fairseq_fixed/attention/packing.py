"""How heads of different kinds share one projection, one output and one gradient.

What the heads of a layer need is projected in one product, run by run: the values of heads that
score nothing; queries, keys and values of every scored head side by side. Memory traffic, not
arithmetic, is what fixed heads cost, so each run reads its slice in place and writes its slice
of the joined output, and in the backward pass of the projection's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairseq_fixed.attention.base import Head
from fairseq_fixed.layout import SequenceLayout

__all__ = ["Slot", "deal", "make_slots", "place", "project"]

#: From so many tokens on, weights are joined for one product; below, a product for each is
#: cheaper than joining them.
FEW_TOKENS = 256


@dataclass(frozen=True)
class Slot:
    """Where a run of heads lies.

    Attributes:
        heads: neighbouring heads of the run.
        width: their channels together.
        scored: whether they have queries and keys.
        start: first channel of the joined output.
        projected: first channel of the projection.
    """

    heads: int
    width: int
    scored: bool
    start: int
    projected: int

    @property
    def output(self) -> slice:
        """The run's channels of the joined output."""
        return slice(self.start, self.start + self.width)

    @property
    def input(self) -> slice:
        """The run's channels of the projection; three times the width where heads are scored."""
        return slice(self.projected, self.projected + self.width * (3 if self.scored else 1))


def make_slots(runs: Sequence[Head]) -> tuple[Slot, ...]:
    """Lay the runs of a layer out, one behind the other."""
    slots: list[Slot] = []
    start = projected = 0
    for run in runs:
        slot = Slot(run.num_heads, run.num_heads * run.head_dim, run.scored, start, projected)
        slots.append(slot)
        start, projected = slot.output.stop, slot.input.stop
    return tuple(slots)


def project(
    x: Tensor,
    v_proj: nn.Module,
    q_proj: nn.Module | None,
    k_proj: nn.Module | None,
    slots: Sequence[Slot],
) -> Tensor:
    """Project what all runs need, (n, batch, channels as `slots` says).

    One product where the projections are plain and tokens many; else each module is called, so
    that hooks, quantization noise and replaced modules do what they do elsewhere.
    """
    if q_proj is None or k_proj is None:
        return v_proj(x)
    modules = (v_proj, q_proj, k_proj)
    if x.shape[0] * x.shape[1] < FEW_TOKENS or not all(_plain(module) for module in modules):
        v, q, k = (module(x) for module in modules)
        return _pack(v, q, k, slots, -1)
    v, q, k = (cast(Tensor, module.weight) for module in modules)
    weight = _pack(v, q, k, slots, 0)
    bias = None
    if v_proj.bias is not None:
        v, q, k = (cast(Tensor, module.bias) for module in modules)
        bias = _pack(v, q, k, slots, 0)
    return F.linear(x, weight, bias)


def _plain(module: nn.Module) -> bool:
    """Return whether calling the module is no more than a product."""
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks)
    return type(module) is nn.Linear and not any(hooks)


def _pack(v: Tensor, q: Tensor, k: Tensor, slots: Sequence[Slot], dim: int) -> Tensor:
    """Order values', queries' and keys' channels, along `dim`, as the projection has them."""
    # neighbours that score nothing go as one
    widths: list[int] = []
    for index, slot in enumerate(slots):
        if index and not slot.scored and not slots[index - 1].scored:
            widths[-1] += slot.width
        else:
            widths.append(slot.width)
    scored = [slot for slot in slots if slot.scored]
    queries = iter(q.split([slot.width for slot in scored], dim))
    keys = iter(k.split([slot.width for slot in scored], dim))
    values = v.split(widths, dim)
    parts: list[Tensor] = []
    index = 0
    for slot, before in zip(slots, (None, *slots), strict=False):
        if not slot.scored and before is not None and not before.scored:
            continue
        part = values[index]
        index += 1
        if slot.scored:
            # (heads, 3, head_dim): a head's query, key and value side by side
            split = [t.unflatten(dim, (slot.heads, -1)) for t in (next(queries), next(keys), part)]
            part = torch.stack(split, dim - 1 if dim < 0 else dim + 1)
            part = part.flatten(-3) if dim < 0 else part.flatten(dim, dim + 2)
        parts.append(part)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def deal(
    projected: Tensor, runs: Sequence[Head], slots: Sequence[Slot], layout: SequenceLayout
) -> tuple[Tensor, list[Tensor]]:
    """Run the heads that write, and hand the others their views of the projection.

    Returns:
        The joined output (n, batch, embed_dim), its other slices not yet written (:func:`place`);
        and, run by run, queries, keys and values (n, batch, heads, head_dim) of scored heads, or
        values (n, batch, channels).
    """
    joined, *parts = _Deal.apply(projected, runs, slots, layout)
    return joined, parts


class _Deal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        runs: Sequence[Head],
        slots: Sequence[Slot],
        layout: SequenceLayout,
    ) -> tuple[Tensor, ...]:
        ctx.runs, ctx.slots, ctx.layout = runs, slots, layout
        n, batch, ctx.width = projected.shape
        joined = projected.new_empty(n, batch, slots[-1].output.stop)
        parts: list[Tensor] = []
        with torch.autocast(projected.device.type, enabled=False):
            for run, slot in zip(runs, slots, strict=True):
                mine = projected[..., slot.input]
                if run.writes:
                    run.write(joined[..., slot.output], mine, layout)
                elif slot.scored:
                    parts += mine.unflatten(-1, (slot.heads, 3, -1)).unbind(3)
                else:
                    parts.append(mine)
        return joined, *parts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        joined, *others = grads
        left = iter(others)
        grad = joined.new_empty(*joined.shape[:2], ctx.width)
        with torch.autocast(joined.device.type, enabled=False):
            for run, slot in zip(ctx.runs, ctx.slots, strict=True):
                mine = grad[..., slot.input]
                if run.writes:
                    run.write_transposed(mine, joined[..., slot.output], ctx.layout)
                elif slot.scored:
                    for part in mine.unflatten(-1, (slot.heads, 3, -1)).unbind(3):
                        part.copy_(next(left))
                else:
                    mine.copy_(next(left))
        return grad, None, None, None


def place(joined: Tensor, part: Tensor, slot: Slot) -> Tensor:
    """Write a run's output, (n, batch, channels) or split by head, into its slice, in place."""
    return _Place.apply(joined, part, slot)


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joined: Tensor, part: Tensor, slot: Slot) -> Tensor:
        ctx.slot, ctx.split = slot, part.dim() == 4
        mine = joined[..., slot.output]
        (mine.unflatten(-1, (slot.heads, -1)) if ctx.split else mine).copy_(part)
        ctx.mark_dirty(joined)
        return joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        mine = grads[0][..., ctx.slot.output]
        return grads[0], mine.unflatten(-1, (ctx.slot.heads, -1)) if ctx.split else mine, None
