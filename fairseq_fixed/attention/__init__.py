"""Multi-head self-attention made of learned and fixed heads. Plain torch, no fairseq."""

from fairseq_fixed.attention.base import EDGES, FixedHead, Head
from fairseq_fixed.attention.mixed import MixedHeadAttention, head_class

__all__ = ["EDGES", "FixedHead", "Head", "MixedHeadAttention", "head_class"]
