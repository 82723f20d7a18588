"""Rare-token heads Σ₃: the neighbours of a sentence's rarest tokens attend to them."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_fixed.attention.base import Head, compute_dtype
from fairseq_fixed.layout import SequenceLayout

__all__ = ["Rare"]


class Rare(Head):
    """The identity, but that tokens near a rare one attend to it (arXiv 2409.00068, section 3).

    For each of the K rarest tokens t of a sentence, row i is 1 at j = t where |i - t| ≤ W; every
    other row is 1 at j = i. Where two of them are near, the nearer one wins, and of two equally
    near the left one (ours; the thesis does not say). `</s>` and padding are never chosen,
    `<unk>` is the rarest, and of equally rare tokens the left one is chosen.

    Args:
        num_heads: neighbouring heads of this kind; their matrices are equal.
        head_dim: channels of a head.
        num_pos: K, at least 1; a sentence with fewer tokens than that has fewer rare ones.
        width: W; 0 is the identity.

    Raises:
        ValueError: K < 1 or W < 0.
    """

    zero_padding = False
    needs = frozenset({"rarity"})

    def __init__(self, num_heads: int, head_dim: int, num_pos: int, width: int) -> None:
        super().__init__(num_heads, head_dim)
        if num_pos < 1 or width < 0:
            raise ValueError(f"rare: K = {num_pos} must be at least 1 and W = {width} at least 0")
        self.num_pos = num_pos
        self.width = width

    def index(self, layout: SequenceLayout) -> Tensor:
        """Return the key that each token attends to, (n, batch) int64: O(n·K)."""

        def make() -> Tensor:
            rare, valid = layout.rarest(self.num_pos)  # (batch, K)
            query = torch.arange(layout.n, device=layout.device)[:, None]
            away = rare - query[:, :, None]  # (n, batch, K)
            # twice the distance, and one more to the right: unequal for unequal tokens
            order = 2 * away.abs() + (away > 0)
            order = order.masked_fill(~valid, 2 * layout.n + 2 * self.width + 2)
            nearest, which = order.min(dim=2)
            chosen = rare.gather(1, which.t()).t()  # (n, batch)
            return torch.where(nearest <= 2 * self.width + 1, chosen, query)

        return layout.memo(("rare", self.num_pos, self.width), make)

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return (batch, num_heads, n, n), a single 1 in each row."""
        rare, valid = layout.rarest(self.num_pos)
        position = torch.arange(layout.n, device=layout.device)
        distance = (position[None, :, None] - rare[:, None, :]).abs()  # (batch, n, K)
        distance = distance.masked_fill(~valid[:, None], layout.n + self.width + 1)
        near = distance.amin(dim=2, keepdim=True) <= self.width
        # from left to right: the first of equal minima is the left one
        left_to_right = rare.masked_fill(~valid, layout.n).argsort(dim=1)
        order = left_to_right[:, None].expand(-1, layout.n, -1)
        which = order.gather(2, distance.gather(2, order).argmin(dim=2, keepdim=True))
        token = rare[:, None].expand(-1, layout.n, -1).gather(2, which)  # (batch, n, 1)
        matrix = torch.where(near, token, position[:, None]) == position
        matrix = (matrix & layout.visible).to(dtype)
        return matrix[:, None].expand(-1, self.num_heads, -1, -1)

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Pick one value for each token."""
        index = self.index(layout)[:, :, None].expand_as(values)
        # a rare token's gradient is a sum over its neighbours: in float32 at least
        return values.to(compute_dtype(values)).gather(0, index).to(values.dtype)

    def extra_repr(self) -> str:
        """Name size and arguments."""
        return f"{super().extra_repr()}, num_pos={self.num_pos}, width={self.width}"
