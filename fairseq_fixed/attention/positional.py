"""Fixed heads that attend to one token: itself, a neighbour, the first or the last.

Patterns 1, 2, 3 and 8 of arXiv 2002.10260, and `first`, the mirror of 8.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_fixed.attention.base import FixedHead
from fairseq_fixed.layout import SequenceLayout

__all__ = ["Current", "First", "Last", "Next", "Previous"]


class Current(FixedHead):
    """Row i is 1 at j = i (pattern 1)."""

    zero_padding = False

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """1 at j = i."""
        return (j == i).double()

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Return the values themselves."""
        return values


class Previous(FixedHead):
    """Row i is 1 at j = i - 1 (pattern 2); row 0 is an edge row."""

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """1 at j = i - 1."""
        return (j == i - 1).double()

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Shift the values by one towards the end."""
        out = F.pad(values[:-1], (0, 0, 0, 0, 1, 0))
        return self.fill_edge(out, values, (layout.position == 0)[:, :, None], layout.start)


class Next(FixedHead):
    """Row i is 1 at j = i + 1 (pattern 3); row n - 1 is an edge row."""

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """1 at j = i + 1."""
        return (j == i + 1).double()

    def edge_key(self, n: Tensor) -> Tensor:
        """Return the last position."""
        return n - 1

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Shift the values by one towards the start."""
        out = F.pad(values[1:], (0, 0, 0, 0, 0, 1))
        empty = layout.position == layout.length - 1
        return self.fill_edge(out, values, empty[:, :, None], layout.last)


class Last(FixedHead):
    """Row i is 1 at j = n - 1, for every i (pattern 8)."""

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """1 at j = n - 1."""
        return (j == n - 1).double().expand(-1, i.shape[1], -1)

    def index(self, layout: SequenceLayout) -> Tensor:
        """Return the token attended to, (batch,)."""
        return layout.last

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Repeat one token's value at every position, without a copy."""
        batch = torch.arange(layout.batch, device=values.device)
        return values[self.index(layout), batch].expand_as(values)


class First(Last):
    """Row i is 1 at j = 0, for every i: the mirror of `last`."""

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """1 at j = 0."""
        return (j == 0).double().expand(-1, i.shape[1], -1)

    def index(self, layout: SequenceLayout) -> Tensor:
        """Return the token attended to, (batch,)."""
        return layout.start
