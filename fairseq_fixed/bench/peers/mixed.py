"""Ours: mixed heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_fixed.attention import MixedHeadAttention, head_class
from fairseq_fixed.bench.peers.base import PAD, Sublayer
from fairseq_fixed.bench.peers.weights import Projections
from fairseq_fixed.heads import HeadSpec
from fairseq_fixed.layout import SequenceLayout
from fairseq_fixed.vocabulary import Vocabulary

__all__ = ["Mixed", "make_vocabulary", "scored_rows"]

#: tokens of the benchmark's vocabulary: enough for ranks to differ
VOCABULARY = 1000


def make_vocabulary(needs: frozenset[str]) -> Vocabulary | None:
    """Return a vocabulary for heads that look at words or rare tokens; None where none does.

    Every other symbol begins a word, and counts fall with the index.
    """
    if not needs:
        return None
    symbols = ["<s>", "<pad>", "</s>", "<unk>"]
    symbols += [("▁" if index % 2 else "") + f"t{index}" for index in range(4, VOCABULARY)]
    return Vocabulary(
        symbols,
        list(range(VOCABULARY, 0, -1)),
        special=(0, PAD, 2),
        unk=3,
        words="words" in needs,
        rarity="rarity" in needs,
    )


def scored_rows(specs: Sequence[HeadSpec], head_dim: int) -> Tensor:
    """Return the rows of a full projection that belong to heads with queries and keys."""
    heads = [index for index, spec in enumerate(specs) if head_class(spec.kind).scored]
    rows = torch.arange(len(specs) * head_dim).view(len(specs), head_dim)
    return rows[torch.tensor(heads, dtype=torch.long)].flatten()


class Mixed(Sublayer):
    """`MixedHeadAttention` on one `SequenceLayout` a batch, made from its tokens."""

    def __init__(self, specs: Sequence[HeadSpec], weights: Projections, d: int, dropout: float):
        super().__init__()
        self.attention = MixedHeadAttention(d, specs, dropout=dropout)
        weights.copy_to(self.attention, scored_rows(specs, d // len(specs)))
        self.vocabulary = make_vocabulary(self.attention.needs)

    def prepare(self, tokens: Tensor) -> SequenceLayout:
        """Return the batch's layout."""
        return SequenceLayout.from_tokens(tokens, PAD, self.vocabulary)

    def forward(self, x: Tensor, prepared: SequenceLayout) -> Tensor:
        """Attend; x is (n, batch, d)."""
        return self.attention(x, prepared)
