"""Ordinary learned heads: softmax(QKᵀ/√k) V (Vaswani et al. 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fairseq_fixed.attention.base import Head
from fairseq_fixed.attention.dropout import dropout_attention, serves
from fairseq_fixed.attention.fused import fused_attention
from fairseq_fixed.attention.tisa import Tisa
from fairseq_fixed.layout import SequenceLayout

__all__ = ["Learned", "Scored"]


class Scored(Head):
    """What heads that score queries against keys share.

    Args:
        num_heads: neighbouring heads of this kind.
        head_dim: channels of a head, k.
        dropout: of the attention weights, in training.
        tisa_kernels: kernels S of a TISA bias (`Tisa`) added to the scores; 0: no bias.
    """

    scored = True
    zero_padding = False

    def __init__(
        self, num_heads: int, head_dim: int, *, dropout: float = 0.0, tisa_kernels: int = 0
    ) -> None:
        super().__init__(num_heads, head_dim)
        self.dropout = dropout
        self.tisa = Tisa(num_heads, tisa_kernels) if tisa_kernels else None

    def split_heads(self, x: Tensor) -> Tensor:
        """View (n, batch, heads * head_dim), or the same split, as (batch, heads, n, head_dim)."""
        if x.dim() == 3:
            x = x.unflatten(2, (self.num_heads, self.head_dim))
        return x.permute(1, 2, 0, 3)

    def join_heads(self, out: Tensor, values: Tensor) -> Tensor:
        """View (batch, heads, n, head_dim) in the form that `values` came in; may copy."""
        return out.permute(2, 0, 1, 3).reshape(values.shape)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Return dropout(softmax(q kᵀ/√k + mask)) v, all (batch, heads, n, head_dim).

        torch's fused attention; on CPUs, which it leaves without dropout, our own.
        """
        if self.dropout_p and serves(q) and not (mask is not None and mask.requires_grad):
            return dropout_attention(q, k, v, mask, self.dropout_p)
        return fused_attention(q, k, v, mask, self.dropout_p)

    def bias(self, layout: SequenceLayout, dtype: torch.dtype) -> Tensor | None:
        """Return what is added to the scores, (1 or batch, heads, n, n), or None."""
        return None if self.tisa is None else self.tisa.matrix(layout.n)[None].to(dtype)

    def scores(
        self, layout: SequenceLayout, queries: Tensor, keys: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Return QKᵀ/√k + bias, (batch, heads, n, n), -inf at padded keys: dense."""
        q, k = self.split_heads(queries).to(dtype), self.split_heads(keys).to(dtype)
        # scaled before the product, which could overflow half precision where scores do not
        scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-1, -2)
        bias = self.bias(layout, dtype)
        if bias is not None:
            scores = scores + bias
        if layout.key_mask is not None:
            scores = scores.masked_fill(~layout.key_mask, -torch.inf)
        return scores


class Learned(Scored):
    """Scaled dot-product attention over a sentence's own tokens."""

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return softmax(QKᵀ/√k + bias) over each sentence's keys, (batch, heads, n, n)."""
        assert queries is not None and keys is not None
        scores = self.scores(layout, queries, keys, dtype)
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
        bias = self.bias(layout, values.dtype)
        mask = layout.key_bias(values.dtype)
        if bias is not None:
            mask = bias if mask is None else bias + mask
        q, k, v = (self.split_heads(x) for x in (queries, keys, values))
        return self.join_heads(self.attention(q, k, v, mask), values)
