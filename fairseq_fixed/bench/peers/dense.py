"""The same mixes the plain way: n×n matrices, and a product with the values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_fixed.attention import MixedHeadAttention, head_class
from fairseq_fixed.bench.errors import UnavailableError
from fairseq_fixed.bench.peers.base import PAD, Sublayer
from fairseq_fixed.bench.peers.mixed import make_vocabulary, scored_rows
from fairseq_fixed.bench.peers.weights import Projections
from fairseq_fixed.heads import HeadSpec
from fairseq_fixed.layout import SequenceLayout

__all__ = ["Dense"]

#: kinds without queries and keys whose matrix differs by layer, or is trained
_BY_LAYER = ("random", "random_frozen")


class _Prepared(NamedTuple):
    matrices: Tensor | None  # (batch, fixed heads, n, n)
    closed: Tensor | None  # (batch or 1, 1 or scored heads, 1 or n, n), True where no weight may be


class Dense(Sublayer):
    """Fixed heads as constant n×n matrices, made once a batch; learned and band heads as softmax.

    The matrices are the heads' definitions, `MixedHeadAttention.weights`. One product of them
    with the values makes all fixed heads, one makes the scored ones.

    Raises:
        UnavailableError: a kind that is not implemented here.
    """

    def __init__(self, specs: Sequence[HeadSpec], weights: Projections, d: int, dropout: float):
        super().__init__()
        for spec in specs:
            known = spec.kind == "learned" or (spec.kind == "band" and spec.args[1] == 0)
            if spec.kind in _BY_LAYER or (head_class(spec.kind).scored and not known):
                raise UnavailableError(f"no dense implementation of {spec} here")
        self.heads, self.head_dim = len(specs), d // len(specs)
        self.dropout = dropout
        self.scored = [i for i, spec in enumerate(specs) if head_class(spec.kind).scored]
        self.fixed = [i for i in range(len(specs)) if i not in self.scored]
        self.widths = [specs[i].args[0] if specs[i].args else math.inf for i in self.scored]
        rows = scored_rows(specs, self.head_dim)
        self.q_proj = nn.Linear(d, len(rows)) if self.scored else None
        self.k_proj = nn.Linear(d, len(rows)) if self.scored else None
        self.v_proj = nn.Linear(d, d)
        self.out_proj = nn.Linear(d, d)
        weights.copy_to(self, rows)
        # one channel a head: for its matrices alone, which do not depend on the width
        fixed = [specs[i] for i in self.fixed]
        definition = MixedHeadAttention(len(fixed), fixed) if fixed else None
        if definition is not None:
            definition.eval()  # entries that a syntactic head drops in training are kept here
        self._definition = [definition]  # in a list: no part of the module's parameters
        self.vocabulary = make_vocabulary(definition.needs if definition else frozenset())

    def prepare(self, tokens: Tensor) -> _Prepared:
        """Return the fixed heads' matrices and what is closed to the scored ones."""
        layout = SequenceLayout.from_tokens(tokens, PAD, self.vocabulary)
        weight = self.v_proj.weight
        definition = self._definition[0]
        matrices = None
        if definition is not None:
            x = torch.empty(
                layout.n, layout.batch, len(self.fixed), dtype=weight.dtype, device=weight.device
            )
            matrices = definition.weights(x, layout)
        closed = None
        if layout.padding_mask is not None:
            closed = layout.padding_mask[:, None, None, :]
        if any(width < layout.n - 1 for width in self.widths):
            position = torch.arange(layout.n, device=tokens.device)
            distance = (position[:, None] - position).abs()
            # one mask for all heads where they are alike
            widths = self.widths if len(set(self.widths)) > 1 else self.widths[:1]
            outside = torch.stack([distance > width for width in widths])[None]
            closed = outside if closed is None else outside | closed
        return _Prepared(matrices, closed)

    def forward(self, x: Tensor, prepared: _Prepared) -> Tensor:
        """Attend; x is (n, batch, d)."""
        n, batch, d = x.shape
        values = self._split(self.v_proj(x))  # (batch, heads, n, head_dim)
        parts: dict[int, Tensor] = {}
        if prepared.matrices is not None:
            out = prepared.matrices @ _take(values, self.fixed)
            parts.update(zip(self.fixed, out.unbind(1), strict=True))
        if self.q_proj is not None and self.k_proj is not None:
            q, k = self._split(self.q_proj(x)), self._split(self.k_proj(x))
            scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-1, -2)
            if prepared.closed is not None:
                # not -inf: rows of padding may have nothing open
                scores = scores.masked_fill(prepared.closed, torch.finfo(scores.dtype).min)
            weights = F.dropout(scores.softmax(dim=-1), self.dropout, self.training)
            out = weights @ _take(values, self.scored)
            parts.update(zip(self.scored, out.unbind(1), strict=True))
        # heads in order: (batch, n, head_dim) each -> (n, batch, d)
        joined = torch.stack([parts[head] for head in range(self.heads)], dim=2)
        return self.out_proj(joined.view(batch, n, d).transpose(0, 1))

    def _split(self, x: Tensor) -> Tensor:
        n, batch, _ = x.shape
        return x.view(n, batch, -1, self.head_dim).permute(1, 2, 0, 3)


def _take(x: Tensor, heads: list[int]) -> Tensor:
    """Return some heads of (batch, heads, …): a view where they are neighbours."""
    if heads == list(range(heads[0], heads[-1] + 1)):
        return x[:, heads[0] : heads[-1] + 1]
    return x[:, heads]
