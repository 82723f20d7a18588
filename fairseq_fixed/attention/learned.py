"""Ordinary learned heads: softmax(QKᵀ/√k) V (Vaswani et al. 2017)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_fixed.attention.base import Head
from fairseq_fixed.layout import SequenceLayout

__all__ = ["Learned"]


class Learned(Head):
    """Scaled dot-product attention over a sentence's own tokens.

    Args:
        num_heads: neighbouring heads of this kind.
        head_dim: channels of a head, k.
        dropout: of the attention weights, in training.
    """

    scored = True
    zero_padding = False

    def __init__(self, num_heads: int, head_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__(num_heads, head_dim)
        self.dropout = dropout

    def _split(self, x: Tensor) -> Tensor:
        # (n, batch, heads * head_dim) -> (batch, heads, n, head_dim), a view
        n, batch, _ = x.shape
        return x.view(n, batch, self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return softmax(QKᵀ/√k) over each sentence's keys, (batch, heads, n, n)."""
        assert queries is not None and keys is not None
        q, k = self._split(queries).to(dtype), self._split(keys).to(dtype)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        if layout.key_mask is not None:
            scores = scores.masked_fill(~layout.key_mask, -torch.inf)
        return scores.softmax(dim=-1) * layout.visible[:, None]

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Return the heads' outputs through torch's fused attention."""
        assert queries is not None and keys is not None
        out = F.scaled_dot_product_attention(
            self._split(queries),
            self._split(keys),
            self._split(values),
            attn_mask=layout.key_mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        # (batch, heads, n, head_dim) -> (n, batch, heads * head_dim)
        return out.permute(2, 0, 1, 3).reshape(values.shape)
