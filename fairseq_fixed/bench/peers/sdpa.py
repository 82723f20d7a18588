"""The yardstick: learned attention through torch's fused kernel, as fast as we can write it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_fixed.bench.peers.base import Sublayer, padding_mask
from fairseq_fixed.bench.peers.weights import Projections

__all__ = ["SdpaAttention"]


class SdpaAttention(Sublayer):
    """One product for queries, keys and values; `scaled_dot_product_attention`; one product.

    Batch first, so that the kernel reads heads in place and writes them where the output
    projection wants them: no copy in the forward pass. The mask is made a number (0 or -inf) once
    a batch; a bool would be converted in every layer.
    """

    batch_first = True

    def __init__(self, weights: Projections, d: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        weight, bias = weights.stacked("q_proj", "k_proj", "v_proj")
        self.qkv.load_state_dict({"weight": weight, "bias": bias})
        self.out.load_state_dict(
            {"weight": weights.weight["out_proj"], "bias": weights.bias["out_proj"]}
        )

    def prepare(self, tokens: Tensor) -> Tensor | None:
        """Return (batch, 1, 1, n), 0 or -inf, or None where nothing is padded."""
        mask = padding_mask(tokens)
        if mask is None:
            return None
        zeros = torch.zeros(mask.shape, dtype=self.qkv.weight.dtype, device=mask.device)
        return zeros.masked_fill_(mask, -torch.inf)[:, None, None, :]

    def forward(self, x: Tensor, prepared: Tensor | None) -> Tensor:
        """Attend; x is (batch, n, d), `prepared` the additive mask."""
        batch, n, d = x.shape
        # (batch, n, 3 d) -> three of (batch, heads, n, head_dim)
        q, k, v = self.qkv(x).view(batch, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=prepared, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out(out.transpose(1, 2).reshape(batch, n, d))
