"""Random heads of the Synthesizer (Tay et al. 2020): a matrix that does not see the input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_fixed.attention.base import Head, compute_dtype
from fairseq_fixed.layout import SequenceLayout

__all__ = ["Random", "RandomFrozen"]


class Random(Head):
    """softmax(R) over a sentence's own keys, R trained and independent of the input.

    R[i, j] is counted from the sentence's start, so that neither the padding's side nor the other
    sentences matter. Every head and layer has its own R, max_positions² numbers. It starts from
    N(0, 1) (ours), so that heads differ from each other and from a plain mean. O(n²), like the
    attention that it stands for.

    Args:
        num_heads: neighbouring heads of this kind.
        head_dim: channels of a head.
        dropout: of the attention weights, in training.
        max_positions: tokens that a sentence may have.

    Raises:
        ValueError: a sentence longer than `max_positions`, when it is attended over.
    """

    #: n x n whatever the operator, so that tests of memory leave it out
    dense_by_nature = True

    logits: Tensor

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        dropout: float = 0.0,
        max_positions: int = 1024,
    ) -> None:
        super().__init__(num_heads, head_dim)
        self.dropout = dropout
        self.max_positions = max_positions
        self._store(torch.randn(num_heads, max_positions, max_positions))

    def _store(self, logits: Tensor) -> None:
        self.logits = nn.Parameter(logits)

    def _check(self, layout: SequenceLayout) -> None:
        if layout.n <= self.max_positions:
            return
        longest = layout.memo("longest", lambda: int(layout.length.max()))
        if longest > self.max_positions:
            raise ValueError(
                f"random heads hold a matrix of {self.max_positions} positions "
                f"(--max-source-positions), but a sentence has {longest} tokens"
            )

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return softmax(R) over each sentence's keys, (batch, num_heads, n, n)."""
        self._check(layout)
        position = layout.position.t().clamp(0, self.max_positions - 1)  # (batch, n)
        scores = self.logits[:, position[:, :, None], position[:, None, :]].transpose(0, 1)
        hidden = ~layout.visible[:, None]
        scores = scores.to(dtype).masked_fill(hidden, torch.finfo(dtype).min)
        return scores.softmax(dim=-1) * ~hidden

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Align sentences at their starts, mix, move back: one matrix slice for the batch."""
        self._check(layout)
        dtype = compute_dtype(values)
        n = min(layout.n, self.max_positions)
        scores = self.logits[:, :n, :n].to(dtype)
        v = values
        if layout.padding_mask is not None:
            there, closed = layout.memo(("aligned", n), lambda: _align(layout, n))
            v = values.gather(0, there[:, :, None].expand(-1, -1, values.shape[2]))
            scores = scores[None].masked_fill(closed[:, None, None], torch.finfo(dtype).min)
        weights = scores.softmax(dim=-1)
        if self.dropout_p:
            # a draw for each sentence, as elsewhere
            weights = F.dropout(weights.expand(layout.batch, -1, -1, -1), self.dropout_p)
        v = v.unflatten(2, (self.num_heads, self.head_dim)).to(dtype)
        equation = "hij,jbhd->ibhd" if weights.dim() == 3 else "bhij,jbhd->ibhd"
        out = torch.einsum(equation, weights, v).flatten(2).to(values.dtype)
        if layout.padding_mask is None:
            return out
        back = layout.position.clamp(0, n - 1)[:, :, None].expand_as(values)
        return out.gather(0, back)

    def extra_repr(self) -> str:
        """Name the sizes."""
        return f"{super().extra_repr()}, max_positions={self.max_positions}"


def _align(layout: SequenceLayout, n: int) -> tuple[Tensor, Tensor]:
    """Return where position p of each sentence lies, (n, batch), and closed keys, (batch, n)."""
    position = torch.arange(n, device=layout.device)[:, None]
    there = (layout.start + position).clamp(max=layout.n - 1)
    closed = (position >= layout.length).t()
    if layout.padding_mask is not None:
        closed = closed | layout.padding_mask.gather(1, there.t())
    # a row of nothing but padding keeps its first key, so that its softmax stays finite
    closed[:, 0] &= ~closed.all(dim=1)
    return there, closed


class RandomFrozen(Random):
    """`random` with R as drawn at the start: a buffer, saved with the model, never trained.

    Attention dropout does not apply to it, as to no fixed head.

    Args:
        num_heads: neighbouring heads of this kind.
        head_dim: channels of a head.
        max_positions: tokens that a sentence may have.
    """

    def __init__(self, num_heads: int, head_dim: int, *, max_positions: int = 1024) -> None:
        super().__init__(num_heads, head_dim, max_positions=max_positions)

    def _store(self, logits: Tensor) -> None:
        self.register_buffer("logits", logits)
