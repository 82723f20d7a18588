"""torch's fused attention, kept busy on a CPU where there are few long sentences.

Its CPU kernel deals sentences and heads out to the cores: the backward pass of one learned head
beside fixed ones, on one long sentence, runs on a single core. Cut into parts, queries are dealt
out as if they were sentences; the gradients of the keys, shared by the parts, are added.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["fused_attention", "parts_of"]

#: Queries of a part, at least: below, cutting costs more than a second core brings.
ROWS = 512


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float = 0.0
) -> Tensor:
    """Return dropout(softmax(q kᵀ/√k + mask)) v.

    Args:
        q: (batch, heads, n, head_dim), as are k and v.
        k: of the same shape.
        v: of the same shape.
        mask: what is added to the scores, (batch or 1, heads or 1, n or 1, n), or None.
        dropout: of the weights.

    Returns:
        (batch, heads, n, head_dim).
    """
    parts = parts_of(q, mask)
    if parts == 1:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    batch, _, n, _ = q.shape
    rows = -(-n // parts)
    # (batch, heads, n, head_dim) -> (batch * parts, heads, rows, head_dim)
    q = F.pad(q, (0, 0, 0, parts * rows - n))
    q = q.unflatten(2, (parts, rows)).transpose(1, 2).flatten(0, 1)
    k, v = (_repeat(x, parts) for x in (k, v))
    if mask is not None and mask.shape[0] > 1:
        mask = _repeat(mask, parts)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return out.unflatten(0, (batch, parts)).transpose(1, 2).flatten(2, 3)[:, :, :n]


def parts_of(q: Tensor, mask: Tensor | None) -> int:
    """Return how many parts to cut queries (batch, heads, n, head_dim) into: 1 is whole."""
    if q.device.type != "cpu" or (mask is not None and mask.shape[2] > 1):
        return 1
    batch, heads, n, _ = q.shape
    needed = -(-torch.get_num_threads() // max(1, batch * heads))
    return max(1, min(needed, n // ROWS))


def _repeat(x: Tensor, parts: int) -> Tensor:
    """Repeat each sentence `parts` times, (batch * parts, …)."""
    return x[:, None].expand(-1, parts, *[-1] * (x.dim() - 1)).flatten(0, 1)
