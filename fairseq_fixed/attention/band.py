"""Band-projected heads: learned scores restricted to a band, plus a few keys open to all.

Section 3 of PAPERS.md (Conti, arXiv 2409.00068): a trained head H is close to a band matrix plus
a sparse one, H ≈ P + Ẽ with |ẽ| ≤ ε. The best band of half-width W for a given H, in entrywise
1-norm and Frobenius norm alike, is H with the entries outside the band set to zero.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_fixed.attention.base import compute_dtype
from fairseq_fixed.attention.learned import Scored
from fairseq_fixed.layout import SequenceLayout

__all__ = ["PROJECTIONS", "SPARSE", "Band"]

PROJECTIONS = ("renormalized", "exact")
SPARSE = ("rarity", "norm")

#: Queries are taken in blocks of at least this many: each sees a window of block + 2W keys. Small
#: blocks waste copies of keys, large ones waste scores outside the band.
MIN_BLOCK = 32


class Band(Scored):
    """Attention to the keys with |i - j| ≤ W, and to `num_pos` further keys of the sentence.

    Queries run in blocks against windows of block + 2W keys through torch's fused attention:
    O(n·W) time and memory, forward and backward.

    Args:
        num_heads: neighbouring heads of this kind.
        head_dim: channels of a head, k.
        width: W; 0 attends to oneself.
        num_pos: K further key positions a sentence, open to every query; a key inside the band
            counts once.
        dropout: of the attention weights, in training.
        tisa_kernels: kernels of a TISA bias on the scores; 0: none.
        band_projection: `renormalized`, the softmax runs inside the band (and over the K keys);
            `exact`, the softmax runs over all keys and the band is cut out of it, the thesis's
            projection, O(n²), for study.
        band_sparse: how the K keys are chosen: `rarity`, the sentence's rarest tokens by the
            dictionary's counts (`</s>` never), or `norm`, each head's longest keys.
        band_epsilon: ε; weights of the K keys are clipped to it after the softmax, without
            renormalising. 1: not clipped.

    Raises:
        ValueError: an unknown projection or choice, or ε outside 0 to 1.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        width: int,
        num_pos: int = 0,
        *,
        dropout: float = 0.0,
        tisa_kernels: int = 0,
        band_projection: str = "renormalized",
        band_sparse: str = "rarity",
        band_epsilon: float = 1.0,
    ) -> None:
        super().__init__(num_heads, head_dim, dropout=dropout, tisa_kernels=tisa_kernels)
        if band_projection not in PROJECTIONS:
            raise ValueError(
                f"band_projection is {band_projection!r}; it must be one of "
                f"{', '.join(PROJECTIONS)}"
            )
        if band_sparse not in SPARSE:
            raise ValueError(f"band_sparse is {band_sparse!r}; it must be one of {SPARSE}")
        if not 0 <= band_epsilon <= 1:
            raise ValueError(f"band_epsilon is {band_epsilon}; it must lie between 0 and 1")
        self.width = width
        self.num_pos = num_pos
        self.projection = band_projection
        self.sparse = band_sparse
        self.epsilon = band_epsilon
        if num_pos and band_sparse == "rarity":
            self.needs = frozenset({"rarity"})

    def _chosen(self, layout: SequenceLayout, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the K keys' indices and whether each exists, both (batch, 1 or heads, K)."""
        if self.sparse == "rarity":
            index, valid = layout.rarest(self.num_pos)
            return index[:, None], valid[:, None]
        norms = self.split_heads(keys.detach()).float().norm(dim=-1)  # (batch, heads, n)
        norms = norms.masked_fill(~layout.attendable[:, None], -1.0)
        # a stable sort: ties go to the left
        ordered, index = norms.sort(dim=-1, descending=True, stable=True)
        valid = ordered[..., : self.num_pos] >= 0
        return index[..., : self.num_pos].masked_fill(~valid, 0), valid

    def _open(self, layout: SequenceLayout, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the band and what the K keys beyond it open; (batch, 1 or heads, n, n)."""
        position = torch.arange(layout.n, device=layout.device)
        band = ((position[:, None] - position[None, :]).abs() <= self.width)[None, None]
        if not self.num_pos:
            return band, torch.zeros_like(band)
        index, valid = self._chosen(layout, keys)
        column = torch.zeros(*index.shape[:2], layout.n, dtype=torch.int32, device=layout.device)
        column = column.scatter_add(2, index, valid.int()) > 0
        return band, column[:, :, None, :] & ~band

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the attention matrices, (batch, heads, n, n), dense."""
        assert queries is not None and keys is not None
        scores = self.scores(layout, queries, keys, dtype)
        band, beyond = self._open(layout, keys)
        visible = layout.visible[:, None]
        if self.projection == "renormalized":
            closed = ~((band | beyond) & visible)
            # rows with nothing to attend to (padding) stay zero rather than NaN
            scores = scores.masked_fill(closed, torch.finfo(dtype).min)
        weights = scores.softmax(dim=-1) * ((band | beyond) & visible)
        return torch.where(beyond, weights.clamp(max=self.epsilon), weights)

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Return the heads' outputs; O(n·W) unless the projection is `exact`."""
        assert queries is not None and keys is not None
        v = self.split_heads(values)
        if self.projection == "exact":
            weights = self.weights(layout, queries, keys, compute_dtype(values))
            out = F.dropout(weights.to(values.dtype), self.dropout_p) @ v
            return out.permute(2, 0, 1, 3).reshape(values.shape)

        n, batch = layout.n, layout.batch
        width = min(self.width, n - 1)  # wider reaches no further, and would cost all the same
        block = min(max(MIN_BLOCK, width), n)
        blocks = -(-n // block)
        fill = blocks * block - n
        q, k = self.split_heads(queries), self.split_heads(keys)
        # (batch, heads, n, k) -> (batch, blocks, heads, block, k)
        q_blocks = F.pad(q, (0, 0, 0, fill)).unflatten(2, (blocks, block)).transpose(1, 2)
        k_windows, v_windows = (
            # (batch, heads, blocks, k, window) -> (batch, blocks, heads, window, k)
            F.pad(x, (0, 0, width, width + fill))
            .unfold(2, block + 2 * width, block)
            .permute(0, 2, 1, 4, 3)
            for x in (k, v)
        )
        mask = _window_mask(layout, width, block, blocks)  # (batch or 1, blocks, 1, block, window)
        bias = None if self.tisa is None else self._window_bias(width, block, values.dtype)
        if self.num_pos:
            index, valid = self._chosen(layout, keys)
            k_windows, v_windows = (
                torch.cat([windows, _gather(x, index)[:, None].expand(-1, blocks, -1, -1, -1)], 3)
                for windows, x in ((k_windows, k), (v_windows, v))
            )
            reach = torch.arange(blocks * block, device=layout.device).view(blocks, 1, block, 1)
            distance = index[:, None, :, None, :] - reach  # (batch, blocks, 1|heads, block, K)
            opened = (distance.abs() > width) & valid[:, None, :, None, :]
            mask = torch.cat([mask.expand(batch, -1, opened.shape[2], -1, -1), opened], dim=-1)
            if bias is not None and self.tisa is not None:
                sparse = self.tisa.at(distance).to(values.dtype)
                bias = torch.cat([bias.expand(*sparse.shape[:4], -1), sparse], dim=-1)
        # a query with nothing to attend to (behind the sentence) sees all, so that nothing is NaN
        mask = mask | ~mask.any(dim=-1, keepdim=True)
        if bias is not None:
            additive: Tensor = bias.masked_fill(~mask, -torch.inf)
        else:
            additive = mask
        additive = additive.expand(batch, blocks, -1, -1, -1)
        out = self._attend_blocks(
            *(x.flatten(0, 1) for x in (q_blocks, k_windows, v_windows, additive)),
            sparse=k_windows.shape[3] - (block + 2 * width),
        )
        # (batch * blocks, heads, block, k) -> (n, batch, heads * k)
        out = out.unflatten(0, (batch, blocks)).permute(1, 3, 0, 2, 4).flatten(0, 1)[:n]
        return out.reshape(values.shape)

    def _attend_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, sparse: int
    ) -> Tensor:
        """Attend within blocks, (batch · blocks, heads, …), to windows and `sparse` more keys.

        `mask` is boolean or additive.
        """
        if not sparse or self.epsilon == 1:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout_p)
        scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-1, -2)
        if mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        else:
            scores = scores + mask
        weights = scores.softmax(-1, dtype=compute_dtype(v))
        band, beyond = weights.split([k.shape[2] - sparse, sparse], -1)
        weights = torch.cat([band, beyond.clamp(max=self.epsilon)], dim=-1).to(v.dtype)
        return F.dropout(weights, self.dropout_p) @ v

    def _window_bias(self, width: int, block: int, dtype: torch.dtype) -> Tensor:
        """Return f(j - i) for a block and its window, (1, 1, heads, block, window)."""
        assert self.tisa is not None
        device = self.tisa.center.device
        window = block + 2 * width
        distance = torch.arange(1 - block - width, block + width, device=device)
        # row i of the block begins at distance -W - i, that is at index block - 1 - i
        rows = self.tisa(distance).unfold(-1, window, 1).flip(-2)
        return rows[None, None].to(dtype)

    def extra_repr(self) -> str:
        """Name size and band."""
        return f"{super().extra_repr()}, width={self.width}, num_pos={self.num_pos}"


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """Pick K positions: (batch, heads, n, k), (batch, 1 or heads, K) -> (batch, heads, K, k)."""
    _, heads, _, channels = x.shape
    return x.gather(2, index.expand(-1, heads, -1)[..., None].expand(-1, -1, -1, channels))


def _window_mask(layout: SequenceLayout, width: int, block: int, blocks: int) -> Tensor:
    """Return which keys of its window each query sees, (1 or batch, blocks, 1, block, w)."""

    def make() -> Tensor:
        window = block + 2 * width
        offset = torch.arange(window, device=layout.device)[None, :] - width
        offset = offset - torch.arange(block, device=layout.device)[:, None]
        band = offset.abs() <= width  # (block, window)
        keys = layout.inside.t()
        # without padding all sentences share one mask
        keys = keys[:1] if layout.padding_mask is None else keys & ~layout.padding_mask
        fill = blocks * block - layout.n
        keys = F.pad(keys, (width, width + fill)).unfold(1, window, block)
        return (band & keys[:, :, None, :])[:, :, None]

    return layout.memo(("band window", width, block, blocks), make)
