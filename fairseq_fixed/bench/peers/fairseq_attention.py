"""fairseq's own attention, called as fairseq's encoder layer calls it."""

from __future__ import annotations

from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_fixed.bench.peers.base import Sublayer
from fairseq_fixed.bench.peers.weights import Projections

__all__ = ["FairseqAttention"]


class FairseqAttention(Sublayer):
    """fairseq's `MultiheadAttention` (`TransformerEncoderLayerBase.forward`): weights not wanted.

    It hands the work to `torch.nn.functional.multi_head_attention_forward`, which takes torch's
    fused attention.
    """

    def __init__(self, weights: Projections, d: int, heads: int, dropout: float):
        super().__init__()
        self.attention = MultiheadAttention(d, heads, dropout=dropout, self_attention=True)
        weights.copy_to(self.attention)

    def forward(self, x: Tensor, prepared: Tensor | None) -> Tensor:
        """Attend; x is (n, batch, d), `prepared` the padding mask."""
        out, _ = self.attention(
            query=x, key=x, value=x, key_padding_mask=prepared, need_weights=False, attn_mask=None
        )
        return out
