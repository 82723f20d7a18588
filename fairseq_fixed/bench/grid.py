"""Which batches to measure on: fixed lengths, and a corpus's mix of lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairseq_fixed.bench.batches import fixed_lengths
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.length_mix import LengthMix

__all__ = ["Grid", "Shape", "describe_lengths"]


class Shape(NamedTuple):
    """The batches of a case: what the result says of them, and the sentences' lengths."""

    case: dict[str, Any]
    lengths: list[list[int]]


def describe_lengths(lengths: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return what a result says of batches of sentences of these lengths."""
    positions = sum(len(batch) * max(batch) for batch in lengths)
    return {
        "batches": len(lengths),
        "sentences": sum(map(len, lengths)),
        "positions": positions,
        "longest": max(map(max, lengths)),
        "padding": round(1 - sum(map(sum, lengths)) / positions, 4),
    }


@dataclass(frozen=True)
class Grid:
    """Lengths, batch sizes and padding: every combination is a shape.

    Attributes:
        lengths: of sentences.
        mix: of lengths, for batches like a corpus's; None: no such shape.
        batches: how many of those.
        tokens: positions a batch; max(1, tokens // length) sentences.
        paddings: shares of the positions, for `lengths`; a mix has the padding that it has.

    Raises:
        BenchError: what no batch can be made of.
    """

    lengths: Sequence[int] = (25, 256, 1024)
    mix: LengthMix | None = None
    batches: int = 4
    tokens: Sequence[int] = (2048,)
    paddings: Sequence[float] = (0.1,)

    def __post_init__(self) -> None:
        """Check."""
        if self.batches < 1:
            raise BenchError(f"{self.batches} batches: there must be at least one")
        if not self.lengths and self.mix is None:
            raise BenchError("lengths: nothing given")
        for length in self.lengths:
            for tokens in self.tokens:
                for padding in self.paddings:
                    fixed_lengths(length, tokens, padding)

    def __len__(self) -> int:
        """Return how many shapes there are."""
        fixed = len(self.lengths) * len(self.paddings)
        return len(self.tokens) * (fixed + (self.mix is not None))

    def shapes(self, seed: int) -> Iterator[Shape]:
        """Yield the shapes; a mix's batches are drawn from the seed."""
        for tokens in self.tokens:
            if self.mix is not None:
                drawn = self.mix.sample(tokens, self.batches, seed)
                lengths = [[source for source, _ in batch] for batch in drawn]
                yield Shape(
                    {"length": "real", "tokens": tokens, **describe_lengths(lengths)}, lengths
                )
            for length in self.lengths:
                for padding in self.paddings:
                    lengths = [fixed_lengths(length, tokens, padding)]
                    yield Shape(
                        {"length": length, "tokens": tokens, **describe_lengths(lengths)}, lengths
                    )
