"""A head that contributes nothing, for ablations."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_fixed.attention.base import Head
from fairseq_fixed.layout import SequenceLayout

__all__ = ["Off"]


class Off(Head):
    """The zero matrix. It keeps its slot, so other heads stay as wide as they were.

    Its rows of the value projection stay too, without any effect or gradient.
    """

    writes = True

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return zeros, (batch, heads, n, n)."""
        zero = torch.zeros((), dtype=dtype, device=layout.device)
        return zero.expand(layout.batch, self.num_heads, layout.n, layout.n)

    def write(self, out: Tensor, values: Tensor, layout: SequenceLayout) -> None:
        """Write zeros."""
        out.zero_()

    def write_transposed(self, grad: Tensor, grad_out: Tensor, layout: SequenceLayout) -> None:
        """Write zeros: the value projection keeps a (zero) gradient, as DDP wants."""
        grad.zero_()
