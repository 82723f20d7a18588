"""Self-attention of a decoder whose heads are learned or fixed: they look back alone.

One rule makes a causal head of each kind: row i is what the encoder's head would give the last
token of the prefix 0 … i, the same pattern with n = i + 1. Plain torch, no fairseq.
"""

from fairseq_fixed.attention.causal.layout import CausalLayout, Step
from fairseq_fixed.attention.causal.mixed import CausalAttention

__all__ = ["CausalAttention", "CausalLayout", "Step"]
