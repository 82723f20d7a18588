"""Batches to measure on: sentences of one length, or of a corpus's mix of lengths."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.peers.base import PAD

__all__ = ["SIDES", "Batch", "fixed_lengths", "make_tokens"]

SIDES = ("left", "right")
_EOS = 2
_FIRST = 4  # the first index that is a symbol of the language


def fixed_lengths(n: int, tokens: int, padding: float) -> list[int]:
    """Return the lengths of a batch's sentences.

    Args:
        n: positions, the longest sentence's length.
        tokens: positions of the batch; it has max(1, tokens // n) sentences.
        padding: share of the positions that is padding. The first sentence has n tokens, the
            others' lengths are spread evenly around the mean that gives the share. A batch of one
            sentence has none.

    Raises:
        BenchError: numbers out of range, or more padding than the sentences leave room for.
    """
    if n < 1:
        raise BenchError(f"length {n}: a sentence has at least one token")
    if tokens < 1:
        raise BenchError(f"{tokens} tokens a batch: there must be at least one")
    if not 0 <= padding < 1:
        raise BenchError(f"padding {padding:g}: a share of the positions, from 0 to below 1")
    batch = max(1, tokens // n)
    if padding == 0 or batch == 1:
        return [n] * batch
    others = batch - 1
    real = round((1 - padding) * batch * n) - n
    if real < others:
        raise BenchError(
            f"padding {padding:g}: {batch} sentences, the longest of {n} tokens, have at most "
            f"{1 - (n + others) / (batch * n):.3g}"
        )
    mean = real / others
    reach = min(mean - 1, n - mean)  # evenly from mean - reach to mean + reach
    steps = [2 * i / (others - 1) - 1 if others > 1 else 0.0 for i in range(others)]
    lengths = [max(1, min(n, round(mean + reach * step))) for step in steps]
    if sum(lengths) == others * n:
        lengths[0] = n - 1  # some padding was asked for
    return [n, *lengths]


def make_tokens(lengths: Sequence[int], side: str, vocabulary: int, seed: int) -> Tensor:
    """Return random sentences that end in `</s>`, padded on a side, (batch, n) int64."""
    generator = torch.Generator().manual_seed(seed)
    n = max(lengths)
    tokens = torch.randint(_FIRST, vocabulary, (len(lengths), n), generator=generator)
    index = torch.arange(n)[None, :]
    length = torch.tensor(lengths)[:, None]
    end = torch.full_like(length, n - 1) if side == "left" else length - 1
    tokens = tokens.masked_fill(index == end, _EOS)
    hidden = index < n - length if side == "left" else index >= length
    return tokens.masked_fill(hidden, PAD)


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch for sublayers: tokens, and an input a layer.

    Attributes:
        tokens: (batch, n).
        layers: inputs to make.
        d: channels.
        dtype: of the inputs.
        seed: of their values.
    """

    tokens: Tensor
    layers: int
    d: int
    dtype: torch.dtype
    seed: int

    @functools.cached_property
    def _values(self) -> list[Tensor]:
        # on the CPU, so that all devices compare the same numbers; one for the gradient
        generator = torch.Generator().manual_seed(self.seed)
        batch, n = self.tokens.shape
        return [
            torch.randn(n, batch, self.d, generator=generator).to(self.tokens.device, self.dtype)
            for _ in range(self.layers + 1)
        ]

    @functools.cached_property
    def _first(self) -> list[Tensor]:
        return [value.detach().transpose(0, 1).contiguous() for value in self._values]

    def inputs(self, batch_first: bool) -> list[Tensor]:
        """Return a leaf a layer: (batch, n, d) or (n, batch, d)."""
        values = self._first if batch_first else self._values
        return [value.requires_grad_() for value in values[:-1]]

    def gradient(self, batch_first: bool) -> Tensor:
        """Return the gradient of an output, zero at padding: nothing looks at an output there."""
        value = (self._first if batch_first else self._values)[-1].detach()
        hidden = self.tokens.eq(PAD)[:, :, None]
        return value.masked_fill(hidden if batch_first else hidden.transpose(0, 1), 0)

    @property
    def shape(self) -> tuple[int, int]:
        """Sentences and positions."""
        return self.tokens.shape[0], self.tokens.shape[1]
