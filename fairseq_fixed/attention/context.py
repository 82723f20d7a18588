"""Fixed heads with cubic weights: left and right context, start and end of the sentence.

Patterns 4 to 7 of arXiv 2002.10260. Sums of cubes are closed: Σ_{k=1..m} k³ = (m(m+1)/2)², so a
row's normaliser needs no sum, and all rows together are one prefix sum: O(n).

Weights are divided by n³ before anything is summed: positions' cubes overflow float16 beyond
n = 40 and their sums lose precision in float32. Sums are kept in float32 at least.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_fixed.attention.base import FixedHead, compute_dtype
from fairseq_fixed.attention.triangular import WeightedTriangle
from fairseq_fixed.layout import SequenceLayout

__all__ = ["End", "Left", "Right", "Start"]


class _Context(FixedHead):
    """Cubic weights that rise towards the query from one side; two nearest tokens left out.

    Row i of the matrix is inverse_sums[i] · cubes[j] up to two tokens away: a weighted triangle,
    two rows below the diagonal (`left`) or above it (`right`).
    """

    writes = True
    reverse = False

    def rank(self, layout: SequenceLayout) -> Tensor:
        """Return each token's rank from the far side, 1 … n inside a sentence; (n, batch)."""
        raise NotImplementedError

    def _cubes(self, layout: SequenceLayout) -> Tensor:
        """Return (rank / n)³, zero at what may not be attended to; (n, batch) float64."""
        n = layout.length.clamp(min=1).double()
        return (self.rank(layout).double() / n) ** 3 * layout.attendable.t()

    def _inverse_sums(self, layout: SequenceLayout) -> Tensor:
        """Return n³ / (m(m+1)/2)² for the m = rank - 2 tokens summed, or 0; (n, batch)."""
        n = layout.length.clamp(min=1).double()
        m = (self.rank(layout).double() - 2) * layout.inside
        return torch.where(m > 0, n**3 / (m * (m + 1) / 2).clamp(min=1).square(), 0)

    def _triangle(self, layout: SequenceLayout, dtype: torch.dtype) -> WeightedTriangle:
        """Return the triangle; that of `right` is transposed."""

        def make() -> WeightedTriangle:
            pattern = layout.pattern
            cubes, inverse = self._cubes(pattern).t(), self._inverse_sums(pattern).t()
            if self.reverse:
                return WeightedTriangle(cubes[:, 2:], inverse[:, :-2], dtype)
            return WeightedTriangle(inverse[:, 2:], cubes[:, :-2], dtype)

        return layout.memo(("cubic triangle", self.reverse, dtype), make)

    def _edge(self, layout: SequenceLayout, dtype: torch.dtype) -> Tensor:
        return layout.memo(
            ("cubic edge", self.reverse, self.edge, dtype),
            lambda: self.edge_rows(layout, self.rank(layout) <= 2, dtype),
        )

    def _multiply(
        self, out: Tensor, x: Tensor, layout: SequenceLayout, *, transposed: bool
    ) -> None:
        # the triangle's rows are those from the third on, its columns those up to the last but
        # two; the other way round where the matrix is an upper triangle
        upper = transposed != self.reverse
        target, source = (out[:-2], x[2:]) if upper else (out[2:], x[:-2])
        (out[-2:] if upper else out[:2]).zero_()
        if layout.n > 2:
            triangle = self._triangle(layout, compute_dtype(x))
            triangle.multiply(target, source, transposed=upper)

    def write(self, out: Tensor, values: Tensor, layout: SequenceLayout) -> None:
        """Multiply by the triangle: O(n)."""
        self._multiply(out, values, layout, transposed=False)
        if self.edge != "zero":
            self.write_edge(out, values, self._edge(layout, values.dtype), layout)

    def write_transposed(self, grad: Tensor, grad_out: Tensor, layout: SequenceLayout) -> None:
        """Multiply by the transposed triangle: O(n)."""
        self._multiply(grad, grad_out, layout, transposed=True)
        if self.edge != "zero":
            self.write_edge_transposed(grad, grad_out, self._edge(layout, grad.dtype), layout)


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

    def edge_index(self, layout: SequenceLayout) -> Tensor:
        """Return the last token."""
        return layout.last

    def rank(self, layout: SequenceLayout) -> Tensor:
        """Return n - j."""
        return layout.length - layout.position


class End(FixedHead):
    """Row i is (j+1)³ for all j, divided by its sum: the same row for every i (pattern 6)."""

    writes = True

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """(j+1)³."""
        return ((j + 1) ** 3).expand(-1, i.shape[1], -1)

    def rank(self, layout: SequenceLayout) -> Tensor:
        """Return j + 1; (n, batch)."""
        return layout.position + 1

    def row(self, layout: SequenceLayout, dtype: torch.dtype) -> Tensor:
        """Return the row that all queries share, (batch, n), or (1, n): all sentences', too.

        It is rank³ / (n(n+1)/2)².
        """

        def make() -> Tensor:
            pattern = layout.pattern
            n = pattern.length.clamp(min=1).double()
            cubes = (self.rank(pattern).double() / n) ** 3 * pattern.attendable.t()
            # contiguous: bmm takes other operands sentence by sentence
            return (cubes * (4 * n / (n + 1) ** 2)).t().to(dtype).contiguous()

        return layout.memo((type(self).__name__, dtype), make)

    def write(self, out: Tensor, values: Tensor, layout: SequenceLayout) -> None:
        """Sum a sentence once and repeat it: O(n)."""
        dtype = compute_dtype(values)
        row = self.row(layout, dtype)[:, None].expand(layout.batch, -1, -1)
        mean = torch.bmm(row, values.transpose(0, 1).to(dtype))  # (batch, 1, channels)
        out.copy_(mean.transpose(0, 1))

    def write_transposed(self, grad: Tensor, grad_out: Tensor, layout: SequenceLayout) -> None:
        """Sum the gradient of a sentence once, give each token its share."""
        dtype = compute_dtype(grad)
        # a sum along the first axis strides; a product does not
        ones = grad.new_ones(1, 1, layout.n, dtype=dtype).expand(layout.batch, -1, -1)
        total = torch.bmm(ones, grad_out.transpose(0, 1).to(dtype))  # (batch, 1, channels)
        torch.mul(self.row(layout, dtype).t()[:, :, None], total.transpose(0, 1), out=grad)


class Start(End):
    """Row i is (n-j)³ for all j, divided by its sum: the mirror of `end` (pattern 7)."""

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """(n-j)³."""
        return ((n - j) ** 3).expand(-1, i.shape[1], -1)

    def rank(self, layout: SequenceLayout) -> Tensor:
        """Return n - j; (n, batch)."""
        return layout.length - layout.position
