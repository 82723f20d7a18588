"""Fixed heads that attend to one token: itself, a neighbour, the first or the last.

Patterns 1, 2, 3 and 8 of arXiv 2002.10260, and `first`, the mirror of 8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_fixed.attention.base import FixedHead
from fairseq_fixed.layout import SequenceLayout

__all__ = ["Current", "First", "Last", "Next", "Previous"]


class Current(FixedHead):
    """Row i is 1 at j = i (pattern 1)."""

    writes = True

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """1 at j = i."""
        return (j == i).double()

    def write(self, out: Tensor, values: Tensor, layout: SequenceLayout) -> None:
        """Copy the values."""
        out.copy_(values)

    def write_transposed(self, grad: Tensor, grad_out: Tensor, layout: SequenceLayout) -> None:
        """Copy the gradient."""
        grad.copy_(grad_out)


class _Neighbour(FixedHead):
    """Row i is 1 at the token beside it; the row without that neighbour is an edge row."""

    writes = True
    #: distance j - i of the neighbour: -1 or 1
    step = 0

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """1 at j = i + step."""
        return (j == i + self.step).double()

    def empty(self, layout: SequenceLayout) -> Tensor:
        """Return the edge rows, (n, batch) bool."""
        raise NotImplementedError

    def kept(self, layout: SequenceLayout, dtype: torch.dtype) -> Tensor | None:
        """Return 1 at rows whose neighbour may be attended to; (n - 1, batch, 1), or None.

        Row r is that of the r-th pair of neighbours. None where there is no padding.
        """
        if layout.padding_mask is None:
            return None

        def make() -> Tensor:
            queries, keys = self._pairs(layout.n)
            kept = layout.inside[queries] & layout.attendable.t()[keys]
            return kept.to(dtype)[:, :, None]

        return layout.memo((type(self).__name__, dtype), make)

    def _pairs(self, n: int) -> tuple[slice, slice]:
        """Return the rows that have a neighbour in the batch's n, and the neighbours' rows."""
        if self.step < 0:
            return slice(1, n), slice(0, n - 1)
        return slice(0, n - 1), slice(1, n)

    def _edge(self, layout: SequenceLayout, dtype: torch.dtype) -> Tensor:
        return layout.memo(
            (type(self).__name__, self.edge, dtype),
            lambda: self.edge_rows(layout, self.empty(layout), dtype),
        )

    def write(self, out: Tensor, values: Tensor, layout: SequenceLayout) -> None:
        """Shift the values by one."""
        queries, keys = self._pairs(layout.n)
        _shift(out, queries, values, keys, self.kept(layout, values.dtype))
        if self.edge != "zero":
            self.write_edge(out, values, self._edge(layout, values.dtype), layout)

    def write_transposed(self, grad: Tensor, grad_out: Tensor, layout: SequenceLayout) -> None:
        """Shift the gradient back."""
        queries, keys = self._pairs(layout.n)
        _shift(grad, keys, grad_out, queries, self.kept(layout, grad.dtype))
        if self.edge != "zero":
            self.write_edge_transposed(grad, grad_out, self._edge(layout, grad.dtype), layout)


def _shift(out: Tensor, rows: slice, x: Tensor, keys: slice, kept: Tensor | None) -> None:
    """Write x[keys] · kept into out[rows], and zero into the one row that is left."""
    out[0 if rows.start else -1].zero_()
    if kept is None:
        out[rows].copy_(x[keys])
    else:
        torch.mul(x[keys], kept, out=out[rows])


class Previous(_Neighbour):
    """Row i is 1 at j = i - 1 (pattern 2); row 0 is an edge row."""

    step = -1

    def empty(self, layout: SequenceLayout) -> Tensor:
        """Return where a sentence begins, (n, batch) bool."""
        return layout.position == 0


class Next(_Neighbour):
    """Row i is 1 at j = i + 1 (pattern 3); row n - 1 is an edge row."""

    step = 1

    def edge_key(self, n: Tensor) -> Tensor:
        """Return the last position."""
        return n - 1

    def edge_index(self, layout: SequenceLayout) -> Tensor:
        """Return the last token."""
        return layout.last

    def empty(self, layout: SequenceLayout) -> Tensor:
        """Return where a sentence ends, (n, batch) bool."""
        return layout.position == layout.length - 1


class Last(FixedHead):
    """Row i is 1 at j = n - 1, for every i (pattern 8)."""

    writes = True

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """1 at j = n - 1."""
        return (j == n - 1).double().expand(-1, i.shape[1], -1)

    def index(self, layout: SequenceLayout) -> Tensor:
        """Return the token attended to, (batch,)."""
        return layout.last

    def write(self, out: Tensor, values: Tensor, layout: SequenceLayout) -> None:
        """Repeat one token's value at every position."""
        out.copy_(values[self.index(layout), layout.sentences])

    def write_transposed(self, grad: Tensor, grad_out: Tensor, layout: SequenceLayout) -> None:
        """Sum the gradient into one token."""
        grad.zero_()
        grad[self.index(layout), layout.sentences] = grad_out.sum(0)


class First(Last):
    """Row i is 1 at j = 0, for every i: the mirror of `last`."""

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """1 at j = 0."""
        return (j == 0).double().expand(-1, i.shape[1], -1)

    def index(self, layout: SequenceLayout) -> Tensor:
        """Return the token attended to, (batch,)."""
        return layout.start
