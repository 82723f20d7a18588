"""The self-attention of an encoder layer whose heads are of different kinds."""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fairseq_fixed.attention.base import FixedHead, Head
from fairseq_fixed.attention.few import few_and_short, multiply
from fairseq_fixed.attention.packing import deal, make_slots, place, project
from fairseq_fixed.attention.words import WordBased
from fairseq_fixed.heads import KINDS, HeadSpec
from fairseq_fixed.layout import SequenceLayout

__all__ = ["MixedHeadAttention", "build_head", "head_class"]


def head_class(kind: str) -> type[Head]:
    """Return the class that implements a kind of the grammar."""
    module, _, name = KINDS[kind].implementation.partition(":")
    return getattr(importlib.import_module(f"fairseq_fixed.attention.{module}"), name)


class MixedHeadAttention(nn.Module):
    """Multi-head self-attention with a kind of head for each head.

    Values are projected for all heads, queries and keys for the heads that score them alone, in
    one product. Neighbouring heads of one kind run together on a slice of the channels, so equal
    heads are best written side by side. All heads write into one tensor, forward and backward:
    nothing is masked, joined or padded in passes of its own (`packing.py`).

    Parameters are named as in fairseq's `MultiheadAttention`: `q_proj`, `k_proj` (absent where no
    head scores), `v_proj`, `out_proj`; rows of `q_proj` and `k_proj` are those of the scored heads
    in order. They start as the rows of a full matrix would: Xavier bounds are computed for
    embed_dim x embed_dim, so a learned head of a mix starts like one of a vanilla encoder.

    Args:
        embed_dim: channels d of the layer.
        heads: one spec a head, such as `parse_mix("7f+1l")`.
        bias: whether the projections have biases.
        **options: what kinds of heads take by name: `dropout` (of learned weights), `edge`, …
            A kind takes those it knows.

    Raises:
        ValueError: `embed_dim` is not divisible by the number of heads.
        TypeError: an option that no kind of head takes.
    """

    def __init__(
        self, embed_dim: int, heads: Sequence[HeadSpec], *, bias: bool = True, **options: object
    ) -> None:
        super().__init__()
        if not heads or embed_dim % len(heads):
            raise ValueError(f"embed_dim {embed_dim} is not divisible by {len(heads)} heads")
        self.embed_dim = embed_dim
        self.num_heads = len(heads)
        self.head_dim = embed_dim // len(heads)
        self.specs = tuple(heads)
        self.runs = nn.ModuleList(
            build_head(spec, len(list(run)), self.head_dim, options)
            for spec, run in itertools.groupby(heads)
        )
        unknown = set(options) - set().union(*(_options(head_class(kind)) for kind in KINDS))
        if unknown:
            raise TypeError(f"no kind of head takes the option {', '.join(sorted(unknown))}")
        scored = self.head_dim * sum(run.num_heads for run in self._runs() if run.scored)
        self.scored_dim = scored
        self.q_proj = nn.Linear(embed_dim, scored, bias=bias) if scored else None
        self.k_proj = nn.Linear(embed_dim, scored, bias=bias) if scored else None
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.slots = make_slots(self._runs())
        self.reset_parameters()

    def _runs(self) -> list[Head]:
        return cast("list[Head]", list(self.runs))

    def reset_parameters(self) -> None:
        """Draw the projections as fairseq does: Xavier, gain 1/√2 for the inputs'."""
        bound = math.sqrt(6 / (2 * self.embed_dim))
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            if projection is not None:
                nn.init.uniform_(projection.weight, -bound / math.sqrt(2), bound / math.sqrt(2))
        nn.init.uniform_(self.out_proj.weight, -bound, bound)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    @property
    def needs(self) -> frozenset[str]:
        """What the layout must know of the tokens: see :attr:`Head.needs`."""
        return frozenset().union(*(run.needs for run in self._runs()))

    def forward(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Attend.

        Args:
            x: (n, batch, embed_dim), finite.
            layout: of this batch.

        Returns:
            (n, batch, embed_dim); undefined at padding.
        """
        runs = self._runs()
        # with one run of scored heads alone there is nothing to share
        if few_and_short(x) or (len(runs) == 1 and runs[0].scored):
            return self._forward_apart(x, layout)
        projected = project(x, self.v_proj, self.q_proj, self.k_proj, self.slots)
        joined, parts = deal(projected, runs, self.slots, layout)
        left = iter(parts)
        for run, slot in zip(runs, self.slots, strict=True):
            if run.writes:
                continue
            if run.scored:
                queries, keys, values = next(left), next(left), next(left)
                out = run.attend(values, layout, queries, keys)
            else:
                out = _attend(run, next(left), layout)
            joined = place(joined, out, slot)
        return self.out_proj(joined)

    def _forward_apart(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Attend as `forward` does: every projection, and every kind of head, by itself."""
        values = self.v_proj(x)
        outs: list[Tensor] = []
        rows = zip(self._runs(), self.slots, self._queries_and_keys(x), strict=True)
        for writes, group in itertools.groupby(rows, key=lambda row: row[0].writes):
            members = list(group)
            if writes:
                first, last = members[0][1], members[-1][1]
                part = values[..., first.output.start : last.output.stop]
                outs.append(multiply([run for run, _, _ in members], part, layout))
                continue
            for run, slot, pair in members:
                part = values[..., slot.output]
                outs.append(
                    run.attend(part, layout, *pair) if run.scored else _attend(run, part, layout)
                )
        return self.out_proj(outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1))

    def _queries_and_keys(self, x: Tensor) -> list[tuple[Tensor | None, Tensor | None]]:
        """Project and deal queries and keys out, one pair a run; (None, None) where none."""
        pairs: list[tuple[Tensor | None, Tensor | None]] = [(None, None)] * len(self.runs)
        if self.q_proj is not None and self.k_proj is not None:
            widths = [slot.width for slot in self.slots if slot.scored]
            queries, keys = (p(x).split(widths, dim=-1) for p in (self.q_proj, self.k_proj))
            scored = [index for index, slot in enumerate(self.slots) if slot.scored]
            for index, pair in zip(scored, zip(queries, keys, strict=True), strict=True):
                pairs[index] = pair
        return pairs

    def weights(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Return all heads' attention matrices, (batch, heads, n, n), dense: for analysis."""
        return torch.cat(
            [
                run.weights(layout, *pair, dtype=x.dtype)
                for run, pair in zip(self._runs(), self._queries_and_keys(x), strict=True)
            ],
            dim=1,
        )

    def extra_repr(self) -> str:
        """Name the layer's size."""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"


def _attend(run: Head, values: Tensor, layout: SequenceLayout) -> Tensor:
    if run.zero_padding and layout.hidden is not None:
        values = values.masked_fill(layout.hidden, 0)
    # Heads that keep their sums in float32 mean it: autocast (fairseq's --amp) would take their
    # products back to half precision, where cubes of positions underflow.
    with torch.autocast(values.device.type, enabled=False):
        return run.attend(values, layout)


def _options(cls: type[Head]) -> set[str]:
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}


def build_head(
    spec: HeadSpec, num_heads: int, head_dim: int, options: Mapping[str, object]
) -> Head:
    """Build a run of `num_heads` equal heads from its spec and the options that its kind takes."""
    cls = head_class(spec.kind)
    taken = {name: options[name] for name in _options(cls) if name in options}
    head = cls(num_heads, head_dim, *spec.args, **taken)
    return WordBased(cast(FixedHead, head)) if spec.words else head
