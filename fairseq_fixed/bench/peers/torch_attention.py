"""torch's own attention module, the self-attention of `torch.nn.TransformerEncoderLayer`."""

from __future__ import annotations

from torch import Tensor, nn

from fairseq_fixed.bench.peers.base import Sublayer
from fairseq_fixed.bench.peers.weights import Projections

__all__ = ["TorchAttention"]


class TorchAttention(Sublayer):
    """`torch.nn.MultiheadAttention`, batch first, as `nn.TransformerEncoderLayer` calls it."""

    batch_first = True

    def __init__(self, weights: Projections, d: int, heads: int, dropout: float):
        super().__init__()
        self.attention = nn.MultiheadAttention(d, heads, dropout=dropout, batch_first=True)
        weight, bias = weights.stacked("q_proj", "k_proj", "v_proj")
        self.attention.load_state_dict(
            {
                "in_proj_weight": weight,
                "in_proj_bias": bias,
                "out_proj.weight": weights.weight["out_proj"],
                "out_proj.bias": weights.bias["out_proj"],
            }
        )

    def forward(self, x: Tensor, prepared: Tensor | None) -> Tensor:
        """Attend; x is (batch, n, d), `prepared` the padding mask."""
        return self.attention(x, x, x, key_padding_mask=prepared, need_weights=False)[0]
