"""Band-projected heads: learned scores restricted to a band, plus a few keys open to all.

Section 3 of PAPERS.md (Conti, arXiv 2409.00068): a trained head H is close to a band matrix plus
a sparse one, H ≈ P + Ẽ with |ẽ| ≤ ε. The best band of half-width W for a given H, in entrywise
1-norm and Frobenius norm alike, is H with the entries outside the band set to zero.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_fixed.attention.base import compute_dtype
from fairseq_fixed.attention.learned import Scored
from fairseq_fixed.layout import SequenceLayout

__all__ = ["PROJECTIONS", "SPARSE", "Band"]

PROJECTIONS = ("renormalized", "exact")
SPARSE = ("rarity", "norm")

#: Queries are taken in blocks of at least this many: each sees a window of block + 2W keys. Small
#: blocks waste copies of keys, large ones waste scores outside the band.
MIN_BLOCK = 32

#: Sentences up to this length are cheaper in one masked product, whatever the band.
SHORT = 192


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
        if self.projection == "exact":
            weights = self.weights(layout, queries, keys, compute_dtype(values))
            out = F.dropout(weights.to(values.dtype), self.dropout_p) @ self.split_heads(values)
            return self.join_heads(out, values)

        n = layout.n
        width = min(self.width, n - 1)  # wider reaches no further, and would cost all the same
        block = max(MIN_BLOCK, width)
        if n < max(SHORT, 2 * block + width) and not (self.num_pos and self.epsilon < 1):
            return self._attend_short(values, layout, queries, keys)
        if not self.num_pos:
            q, k, v = (self.split_heads(x).permute(2, 0, 1, 3) for x in (queries, keys, values))
            out = self._attend_windows(q, k, v, layout, width, block)
            return out.reshape(values.shape)
        return self._attend_copies(values, layout, queries, keys, width, min(block, n))

    def _attend_short(
        self, values: Tensor, layout: SequenceLayout, queries: Tensor, keys: Tensor
    ) -> Tensor:
        """Attend in sentences of few blocks: all scores, those outside the band closed."""
        dtype = values.dtype

        def make() -> Tensor:
            position = torch.arange(layout.n, device=layout.device)
            band = (position[:, None] - position[None, :]).abs() <= self.width
            return _additive(band & layout.pattern.attendable[:, None, None, :], dtype)

        if self.num_pos:
            band, beyond = self._open(layout, keys)
            mask = _additive((band | beyond) & layout.attendable[:, None, None, :], dtype)
        else:
            mask = layout.memo(("band", self.width, dtype), make)
        bias = self.bias(layout, dtype)
        q, k, v = (self.split_heads(x) for x in (queries, keys, values))
        out = self.attention(q, k, v, mask if bias is None else mask + bias)
        return self.join_heads(out, values)

    def _attend_windows(
        self, q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout, width: int, block: int
    ) -> Tensor:
        """Attend block by block, each block to its window of the keys, without copies.

        Args:
            q: (n, batch, heads, head_dim); n >= 2 block + width.
            k: of the same shape.
            v: of the same shape.
            layout: of the batch.
            width: W.
            block: queries of a block, at least W.

        Returns:
            (n, batch, heads, head_dim).
        """
        n, batch = layout.n, layout.batch
        inner = (n - width) // block - 1  # blocks but for the first and the last, longer one
        # batch and heads are one dimension, whose stride is that of the heads
        q, k, v = (x.flatten(1, 2) for x in (q, k, v))
        sizes = [block, inner * block, n - (inner + 1) * block]
        parts = zip(
            q.split(sizes),
            _Windows.apply(k, width, block, inner),
            _Windows.apply(v, width, block, inner),
            self._window_masks(layout, width, block, inner, v.dtype),
            strict=True,
        )
        outs: list[Tensor] = []
        for queries, keys, values, mask in parts:
            # -> (blocks, batch * heads, rows, head_dim)
            rows = queries.unflatten(0, (keys.shape[0], -1)).transpose(1, 2)
            out = F.scaled_dot_product_attention(
                rows, keys, values, attn_mask=mask, dropout_p=self.dropout_p
            )
            outs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outs).unflatten(1, (batch, -1))

    def _window_masks(
        self, layout: SequenceLayout, width: int, block: int, inner: int, dtype: torch.dtype
    ) -> list[Tensor]:
        """Return what is added to the scores of the first, the inner and the last blocks.

        Each is (1 or blocks, 1 or batch * heads, rows, window).
        """

        def make() -> list[Tensor]:
            pattern = layout.pattern
            n, last = layout.n, (inner + 1) * block
            offset = torch.arange(n, device=layout.device)
            keys = pattern.attendable
            masks: list[Tensor] = []
            for first, rows, begin, window, blocks in (
                (0, block, 0, block + width, 1),
                (block, block, block - width, block + 2 * width, inner),
                (last, n - last, last - width, n - last + width, 1),
            ):
                distance = offset[begin : begin + window] - offset[first : first + rows, None]
                band = distance.abs() <= width
                if layout.padding_mask is None:
                    masks.append(_additive(band[None, None], dtype))
                    continue
                stop = begin + window + (blocks - 1) * block
                # (batch, blocks, window) -> (blocks, batch, 1, window)
                open_keys = keys[:, begin:stop].unfold(1, window, block).transpose(0, 1)
                mask = _additive(band & open_keys[:, :, None], dtype)
                masks.append(mask.repeat_interleave(self.num_heads, dim=1))
            return masks

        heads = None if layout.padding_mask is None else self.num_heads
        masks = layout.memo(("band windows", width, block, heads, dtype), make)
        if self.tisa is None:
            return masks
        middle = self._window_bias(width, block, dtype)[0]  # (1, heads, block, block + 2 W)
        longest = masks[2].shape[2]
        end = self._window_bias(width, longest, dtype)[0][..., : longest + width]
        biases = (middle[..., width:], middle, end)
        return [
            mask + bias.repeat(1, layout.batch, 1, 1)
            for mask, bias in zip(masks, biases, strict=True)
        ]

    def _attend_copies(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor,
        keys: Tensor,
        width: int,
        block: int,
    ) -> Tensor:
        """Attend block by block to windows of the keys with the K further keys beside them."""
        n, batch = layout.n, layout.batch
        v = self.split_heads(values)
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


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where a key may be attended to and -inf elsewhere; a row without any sees all."""
    closed = ~mask & mask.any(dim=-1, keepdim=True)
    return torch.zeros((), dtype=dtype, device=mask.device).masked_fill(closed, -torch.inf)


class _Windows(torch.autograd.Function):
    """Views of the keys that the first, the inner and the last block of queries see.

    Overlapping views, not copies: (n, channels', k) -> three of (blocks, channels', window, k).
    The gradient of what windows share is their sum.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, width: int, block: int, inner: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.shape, ctx.width, ctx.block, ctx.inner = x.shape, width, block, inner
        last = (inner + 1) * block
        middle = x[block - width : last + width].unfold(0, block + 2 * width, block)
        return (
            x[: block + width].transpose(0, 1)[None],
            middle.transpose(2, 3),
            x[last - width :].transpose(0, 1)[None],
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        # -> (blocks, window, channels', k)
        first, middle, final = (grad.transpose(1, 2) for grad in grads)
        width, block, inner = ctx.width, ctx.block, ctx.inner
        last = (inner + 1) * block
        out = first.new_empty(ctx.shape)
        out[:block].copy_(first[0, :block])
        own = out[block:last].unflatten(0, (inner, block))
        own.copy_(middle[:, width : width + block])
        out[last:].copy_(final[0, width:])
        if width:
            out[block : block + width] += first[0, block:]
            own[:, :width][1:] += middle[:-1, width + block :]
            out[last : last + width] += middle[-1, width + block :]
            before = out[:last].unflatten(0, (inner + 1, block))[:, block - width :]
            before[:inner] += middle[:, :width]
            before[inner] += final[0, :width]
        return out, None, None, None
