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

    Values are projected for all heads in one product, queries and keys for the heads that score
    them alone. Neighbouring heads of one kind run together on a slice of the channels, so equal
    heads are best written side by side.

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
        self.widths = [run.num_heads * self.head_dim for run in self._runs()]
        self.scored_widths = [
            width for run, width in zip(self._runs(), self.widths, strict=True) if run.scored
        ]
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

    def _queries_and_keys(self, x: Tensor) -> list[tuple[Tensor | None, Tensor | None]]:
        """Project and deal queries and keys out, one pair a run; (None, None) where none."""
        pairs: list[tuple[Tensor | None, Tensor | None]] = [(None, None)] * len(self.runs)
        if self.q_proj is not None and self.k_proj is not None:
            queries = self.q_proj(x).split(self.scored_widths, dim=-1)
            keys = self.k_proj(x).split(self.scored_widths, dim=-1)
            scored = [index for index, run in enumerate(self._runs()) if run.scored]
            for index, pair in zip(scored, zip(queries, keys, strict=True), strict=True):
                pairs[index] = pair
        return pairs

    def forward(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        """Attend.

        Args:
            x: (n, batch, embed_dim).
            layout: of this batch.

        Returns:
            (n, batch, embed_dim); undefined at padding.
        """
        values = self.v_proj(x)
        if layout.hidden is not None and any(run.zero_padding for run in self._runs()):
            values = values.masked_fill(layout.hidden, 0)
        outs = [
            _attend(run, part, layout, pair)
            for run, part, pair in zip(
                self._runs(),
                values.split(self.widths, dim=-1),
                self._queries_and_keys(x),
                strict=True,
            )
        ]
        return self.out_proj(outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1))

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


def _attend(
    run: Head, values: Tensor, layout: SequenceLayout, pair: tuple[Tensor | None, Tensor | None]
) -> Tensor:
    if run.scored:
        return run.attend(values, layout, *pair)
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
