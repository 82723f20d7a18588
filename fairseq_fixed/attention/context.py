"""Fixed heads with cubic weights: left and right context, start and end of the sentence.

Patterns 4 to 7 of arXiv 2002.10260. Sums of cubes are closed: Σ_{k=1..m} k³ = (m(m+1)/2)², so a
row's normaliser needs no sum, and all rows together are one prefix sum: O(n).

Weights are divided by n³ before anything is summed: positions' cubes overflow float16 beyond
n = 40 and their sums lose precision in float32. Sums are kept in float32 at least.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_fixed.attention.base import FixedHead, compute_dtype
from fairseq_fixed.layout import SequenceLayout

__all__ = ["BLOCK", "End", "Left", "Right", "Start", "prefix_sum"]

#: Up to this many positions are summed by one product with a triangular matrix of ones. Such
#: products run at the speed of BLAS, while `cumsum` along any axis but the last strides.
BLOCK = 64


def prefix_sum(x: Tensor, layout: SequenceLayout, *, reverse: bool = False) -> Tensor:
    """Return the inclusive prefix sums of x along its first axis, or the suffix sums.

    O(n): products with a BLOCK x BLOCK triangle within blocks, then a prefix sum over the blocks'
    totals. A suffix sum is computed as such: total minus prefix would cancel where it is small.

    Args:
        x: (n, batch, channels), float32 or float64.
        layout: of the batch; keeps the triangle.
        reverse: sum from each position to the end.
    """
    n, batch, channels = x.shape
    block = min(n, BLOCK)

    def triangle() -> Tensor:
        ones = torch.ones(block, block, dtype=x.dtype, device=x.device)
        return ones.triu() if reverse else ones.tril()

    key: Hashable = ("triangle", block, reverse, x.dtype)
    matrix = layout.memo(key, triangle)
    if n == block:
        return (matrix @ x.reshape(n, -1)).view(n, batch, channels)
    blocks = -(-n // block)
    padded = F.pad(x, (0, 0, 0, 0, 0, blocks * block - n)) if blocks * block > n else x
    inner = torch.matmul(matrix, padded.reshape(blocks, block, batch * channels))
    totals = inner[:, 0] if reverse else inner[:, -1]
    carried = totals.flip(0).cumsum(0).flip(0) if reverse else totals.cumsum(0)
    # what the blocks before (behind) this one add: the cumulated totals, shifted by one block
    carried = F.pad(carried[1:], (0, 0, 0, 1)) if reverse else F.pad(carried[:-1], (0, 0, 1, 0))
    return (inner + carried[:, None]).view(blocks * block, batch, channels)[:n]


class _Context(FixedHead):
    """Cubic weights that rise towards the query from one side; two nearest tokens left out."""

    reverse = False

    def rank(self, layout: SequenceLayout) -> Tensor:
        """Return each token's rank from the far side, 1 … n inside a sentence; (n, batch)."""
        raise NotImplementedError

    def cubes(self, layout: SequenceLayout, dtype: torch.dtype) -> Tensor:
        """Return (rank / n)³, zero outside the sentence; (n, batch, 1)."""

        def make() -> Tensor:
            n = layout.length.clamp(min=1).to(dtype)
            cubes = (self.rank(layout).to(dtype) / n) ** 3
            return (cubes * layout.inside)[:, :, None]

        return layout.memo(("cubes", self.reverse, dtype), make)

    def inverse_sums(self, layout: SequenceLayout, dtype: torch.dtype) -> Tensor:
        """Return n³ / (m(m+1)/2)² for the m = rank - 2 tokens summed, or 0; (n, batch, 1)."""

        def make() -> Tensor:
            n = layout.length.clamp(min=1).to(dtype)
            m = (self.rank(layout).to(dtype) - 2) * layout.inside
            half = m * (m + 1) / 2
            inverse = n**1.5 / half.clamp(min=1)
            return torch.where(m > 0, inverse * inverse, torch.zeros_like(inverse))[:, :, None]

        return layout.memo(("inverse sums", self.reverse, dtype), make)

    def edge_index(self, layout: SequenceLayout) -> Tensor:
        """Return the token that `edge="clamp"` attends to, (batch,)."""
        raise NotImplementedError

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Weigh, sum up to two tokens away, normalise: O(n)."""
        dtype = compute_dtype(values)
        sums = prefix_sum(values * self.cubes(layout, dtype), layout, reverse=self.reverse)
        pad = (0, 0, 0, 0, 0, 2) if self.reverse else (0, 0, 0, 0, 2, 0)
        shifted = F.pad(sums[2:] if self.reverse else sums[:-2], pad)
        # a sentence of one token has no sums[:-2]; padding then makes n + 1 rows
        out = shifted[: layout.n] * self.inverse_sums(layout, dtype)
        empty = self.rank(layout) <= 2
        return self.fill_edge(
            out.to(values.dtype), values, empty[:, :, None], self.edge_index(layout)
        )


class Left(_Context):
    """Row i is (j+1)³ for j = 0 … i-2, divided by its sum (pattern 4): the nearest weighs most.

    The bound i - 2 (inclusive) is recalled, not checked against the paper. Rows 0 and 1 are edge
    rows.
    """

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """(j+1)³ for j <= i - 2."""
        return (j + 1) ** 3 * (j <= i - 2)

    def rank(self, layout: SequenceLayout) -> Tensor:
        """Return j + 1."""
        return layout.position + 1

    def edge_index(self, layout: SequenceLayout) -> Tensor:
        """Return the first token."""
        return layout.start


class Right(_Context):
    """Row i is (n-j)³ for j = i+2 … n-1, divided by its sum (pattern 5): the mirror of `left`.

    Recalled: the paper's pattern 5 as the flipped pattern 4. One public re-implementation has it
    so; another weighs the farthest token most. Rows n - 2 and n - 1 are edge rows.
    """

    reverse = True

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """(n-j)³ for j >= i + 2."""
        return (n - j) ** 3 * (j >= i + 2)

    def edge_key(self, n: Tensor) -> Tensor:
        """Return the last position."""
        return n - 1

    def rank(self, layout: SequenceLayout) -> Tensor:
        """Return n - j."""
        return layout.length - layout.position

    def edge_index(self, layout: SequenceLayout) -> Tensor:
        """Return the last token."""
        return layout.last


class End(FixedHead):
    """Row i is (j+1)³ for all j, divided by its sum: the same row for every i (pattern 6)."""

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """(j+1)³."""
        return ((j + 1) ** 3).expand(-1, i.shape[1], -1)

    def rank(self, layout: SequenceLayout) -> Tensor:
        """Return j + 1; (n, batch)."""
        return layout.position + 1

    def row(self, layout: SequenceLayout, dtype: torch.dtype) -> Tensor:
        """Return the row that all queries share: rank³ / (n(n+1)/2)²; (n, batch)."""

        def make() -> Tensor:
            n = layout.length.clamp(min=1).to(dtype)
            cubes = (self.rank(layout).to(dtype) / n) ** 3
            return cubes * layout.inside * (4 * n / (n + 1) ** 2)

        return layout.memo((type(self).__name__, dtype), make)

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Sum a sentence once and repeat it, without a copy: O(n)."""
        dtype = compute_dtype(values)
        row = self.row(layout, dtype)
        mean = torch.einsum("nb,nbc->bc", row, values.to(dtype))
        return mean.to(values.dtype).expand_as(values)


class Start(End):
    """Row i is (n-j)³ for all j, divided by its sum: the mirror of `end` (pattern 7)."""

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """(n-j)³."""
        return ((n - j) ** 3).expand(-1, i.shape[1], -1)

    def rank(self, layout: SequenceLayout) -> Tensor:
        """Return n - j; (n, batch)."""
        return layout.length - layout.position
