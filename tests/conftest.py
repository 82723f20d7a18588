"""Shared fixtures: batches of sentences of several lengths, padded on either side."""

from __future__ import annotations

import pytest
import torch

from fairseq_fixed.heads import KINDS, HeadSpec
from fairseq_fixed.layout import SequenceLayout


def make_mask(lengths: list[int], n: int, side: str) -> torch.Tensor:
    """Padding mask (batch, n), True at padding."""
    index = torch.arange(n)[None, :]
    lengths_ = torch.tensor(lengths)[:, None]
    return index >= lengths_ if side == "right" else index < n - lengths_


def make_layout(lengths: list[int], side: str = "left", n: int | None = None) -> SequenceLayout:
    """Layout of sentences of these lengths; without a mask where nothing is padded."""
    n = n or max(lengths)
    if all(length == n for length in lengths):
        return SequenceLayout(None, shape=(len(lengths), n))
    return SequenceLayout(make_mask(lengths, n, side))


def example_spec(kind: str) -> HeadSpec:
    """A head of this kind with arguments inside their ranges, for tests that walk all kinds."""
    args = []
    for argument in KINDS[kind].arguments:
        low = argument.minimum if argument.minimum is not None else 0
        args.append(argument.type(min(low + 1, argument.maximum or low + 1)))
    return HeadSpec(kind, tuple(args))


def every_spec() -> list[HeadSpec]:
    """One head of every kind of the grammar."""
    return [example_spec(kind) for kind in KINDS]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
