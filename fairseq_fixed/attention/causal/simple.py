"""Causal heads that cost nothing: current, previous, off."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_fixed.attention.causal.base import CausalHeads, FixedHeads
from fairseq_fixed.attention.causal.layout import CausalLayout, Step
from fairseq_fixed.heads import HeadSpec

__all__ = ["Current", "Off", "Previous"]


class Current(FixedHeads):
    """Row i is 1 at j = i."""

    def attend(
        self,
        values: Tensor,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Return the values themselves."""
        return values

    def step(
        self, inputs: Tensor, step: Step, state: Tensor | None, dropout: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        """Return the values themselves."""
        return inputs.squeeze(2), None


class Previous(FixedHeads):
    """Row i is 1 at j = i - 1; row 0 is an edge row.

    Args:
        specs: one a head.
        head_dim: channels of a head.
        edge: what row 0 holds; for `clamp` as for `self` that is the first token.
    """

    def __init__(self, specs: Sequence[HeadSpec], head_dim: int, *, edge: str = "zero") -> None:
        super().__init__(specs, head_dim, edge=edge)
        self.edge = edge

    def attend(
        self,
        values: Tensor,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Shift the values by one."""
        out = F.pad(values[:-1], (0, 0, 0, 0, 0, 0, 1, 0))
        if self.edge == "zero":
            return out
        return torch.where((layout.position == 0)[:, :, None, None], values, out)

    def step(
        self, inputs: Tensor, step: Step, state: Tensor | None, dropout: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        """Return the values of the step before; the state are those of this one."""
        values = inputs.squeeze(2)
        if state is None:
            state = torch.zeros_like(values) if self.edge == "zero" else values
        elif step.position is not None and self.edge != "zero":
            state = torch.where((step.position == 0)[:, None, None], values, state)
        return state, values

    def reorder(self, state: Tensor, order: Tensor, tokens: int) -> Tensor:
        """Pick sentences."""
        return state.index_select(0, order)


class Off(CausalHeads):
    """The zero matrix; the heads' rows of the value projection stay, without effect."""

    def weights(
        self,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return zeros, (batch, heads, n, n)."""
        zero = torch.zeros((), dtype=dtype, device=layout.device)
        return zero.expand(layout.batch, self.num_heads, layout.n, layout.n)

    def attend(
        self,
        values: Tensor,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Return zeros."""
        return _zeros(values)

    def step(
        self, inputs: Tensor, step: Step, state: Tensor | None, dropout: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        """Return zeros."""
        return _zeros(inputs.squeeze(2)), None


def _zeros(values: Tensor) -> Tensor:
    # filled, not made anew: the value projection keeps a (zero) gradient, as DDP wants
    return values.masked_fill(torch.ones((), dtype=torch.bool, device=values.device), 0)
