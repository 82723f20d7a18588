"""Causal heads that score queries against keys: learned, alibi, band."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_fixed.attention.base import compute_dtype
from fairseq_fixed.attention.causal.base import CausalHeads, lasting
from fairseq_fixed.attention.causal.layout import CausalLayout, Step
from fairseq_fixed.attention.causal.slots import FIRST, select_slots, write_slot
from fairseq_fixed.heads import HeadSpec

__all__ = ["Scored"]

#: Queries of a band are taken in blocks of at least this many; each sees block + W keys.
MIN_BLOCK = 32


class Scored(CausalHeads):
    """softmax(QKᵀ/√k) over j ≤ i; `band:W`: over i - W ≤ j ≤ i; `alibi`: minus a slope · (i - j).

    ALiBi's slopes are its geometric series over the layer's H alibi heads, from steep to flat:
    2^(-8h/H), h = 1 … H (Press, Smith, Lewis 2022).

    A step keeps keys and values: of all tokens so far, or, in a ring, of the last W + 1.

    Args:
        specs: one a head; bands of one width.
        head_dim: channels of a head, k.
    """

    scored = True

    def __init__(self, specs: Sequence[HeadSpec], head_dim: int) -> None:
        super().__init__(specs, head_dim)
        #: keys that a query may see, itself included; None: all so far
        self.window = int(specs[0].args[0]) + 1 if specs[0].kind == "band" else None
        biased = [spec.kind == "alibi" for spec in specs]
        series = [-(2.0 ** (-8 * (h + 1) / sum(biased))) for h in range(sum(biased))]
        #: what a token's distance adds to the scores, (heads,); None: nothing
        self.slopes = tuple(series.pop(0) if b else 0.0 for b in biased) if any(biased) else None
        self._slopes: dict[object, Tensor] = {}
        self._closed: dict[object, Tensor] = {}

    @classmethod
    def family(cls, spec: HeadSpec) -> object:
        """Heads with the same window share keys and values."""
        return spec.args[0] if spec.kind == "band" else None

    def bias(self, distance: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return what distances (queries, keys) ≥ 0 add to the scores, (heads, queries, keys)."""
        if self.slopes is None:
            return None
        if distance.device not in self._slopes:
            with lasting():
                slopes = torch.tensor(self.slopes, dtype=torch.float64)[:, None, None]
                self._slopes[distance.device] = slopes.to(distance.device)
        return (self._slopes[distance.device] * distance).to(dtype)

    def _open(self, layout: CausalLayout) -> Tensor:
        """Return which keys a query may attend to, (batch, n, n)."""
        if self.window is None:
            return layout.visible
        near = torch.ones(layout.n, layout.n, dtype=torch.bool, device=layout.device)
        return layout.visible & near.triu(1 - self.window)

    def weights(
        self,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return softmax(QKᵀ/√k + bias) over the keys that are open, (batch, heads, n, n)."""
        assert queries is not None and keys is not None
        q, k = (x.to(dtype).permute(1, 2, 0, 3) for x in (queries, keys))
        scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-1, -2)
        position = torch.arange(layout.n, device=layout.device)
        bias = self.bias(position[:, None] - position, dtype)
        scores = scores if bias is None else scores + bias
        open_ = self._open(layout)[:, None]
        scores = scores.masked_fill(~open_, torch.finfo(dtype).min)
        return scores.softmax(-1) * open_

    def attend(
        self,
        values: Tensor,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Attend through torch's fused operator; bands in O(n·W)."""
        assert queries is not None and keys is not None
        q, k, v = (x.permute(1, 2, 0, 3) for x in (queries, keys, values))
        reach = layout.n if self.window is None else self.window
        if layout.n > 2 * max(MIN_BLOCK, reach):
            out = self._attend_blocks(q, k, v, layout, dropout)
        elif reach >= layout.n and layout.padding_mask is None and self.slopes is None:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        else:
            key = ("scored mask", self.window, self.slopes, q.dtype)
            mask = layout.memo(key, lambda: self._mask(layout, q.dtype))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        # (batch, heads, n, head_dim) -> (n, batch, heads, head_dim)
        return out.permute(2, 0, 1, 3)

    def _mask(self, layout: CausalLayout, dtype: torch.dtype) -> Tensor:
        """Return which keys are open, or their bias, (batch or 1, heads or 1, n, n)."""
        open_ = self._open(layout)
        open_ = open_[:1] if layout.padding_mask is None else open_
        # padding sees itself, so that its softmax stays finite
        open_ = open_ | torch.eye(layout.n, dtype=torch.bool, device=layout.device)
        position = torch.arange(layout.n, device=layout.device)
        bias = self.bias(position[:, None] - position, dtype)
        if bias is None:
            return open_[:, None]
        return bias.masked_fill(~open_[:, None], -torch.inf)

    def _attend_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, layout: CausalLayout, dropout: float
    ) -> Tensor:
        """Attend within blocks of queries to windows of keys; (batch, heads, n, head_dim)."""
        assert self.window is not None
        batch, heads, n, _ = q.shape
        past = self.window - 1
        block = max(MIN_BLOCK, past)
        blocks = -(-n // block)
        fill = blocks * block - n
        # (batch, heads, n, k) -> (blocks, batch * heads, block, k)
        q = F.pad(q, (0, 0, 0, fill)).unflatten(2, (blocks, block))
        q = q.permute(2, 0, 1, 3, 4).flatten(1, 2)
        k, v = (
            # (batch, heads, blocks, k, past + block) -> (blocks, batch * heads, past + block, k)
            F.pad(x, (0, 0, past, fill))
            .unfold(2, past + block, block)
            .permute(2, 0, 1, 4, 3)
            .flatten(1, 2)
            for x in (k, v)
        )
        mask = layout.memo(
            ("block mask", past, block), lambda: self._block_mask(layout, past, block, blocks)
        )
        if mask.dim() == 5:  # (blocks, batch, 1, block, past + block)
            mask = mask.expand(-1, -1, heads, -1, -1).flatten(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        out = out.unflatten(1, (batch, heads)).permute(1, 2, 0, 3, 4)
        return out.flatten(2, 3)[:, :, :n]

    @staticmethod
    def _block_mask(layout: CausalLayout, past: int, block: int, blocks: int) -> Tensor:
        """Return a window's open keys, (blocks, 1, block, past + block), or by sentence behind."""
        device = layout.device
        offset = torch.arange(past + block, device=device) - past
        distance = torch.arange(block, device=device)[:, None] - offset
        near = (distance >= 0) & (distance <= past)
        key = torch.arange(blocks, device=device)[:, None] * block + offset
        if layout.padding_mask is None:
            return near & (key >= 0)[:, None, None]
        fill = blocks * block - layout.n
        real = F.pad(~layout.padding_mask, (past, fill)).unfold(1, past + block, block)
        real = real.transpose(0, 1)[:, :, None, None]
        # padding sees itself, so that its softmax stays finite
        return (near & real) | (distance == 0)

    def step(
        self, inputs: Tensor, step: Step, state: Tensor | None, dropout: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to what is kept; the state is (batch, heads, 2, slots, head_dim)."""
        index = step.index
        # keys and values, (batch, heads, 2, head_dim)
        new = inputs[:, :, :2, None]
        state = write_slot(state, new, slots=3, index=index, most=self.window)
        seen = min(index + 1, state.shape[3])
        # of few keys torch's products and softmax take the slow way: a full state, partly closed,
        # is faster
        slots = max(seen, min(FIRST, state.shape[3]))
        k, v = state[:, :, :, :slots].unbind(2)
        scores = inputs[:, :, 2:] @ k.transpose(-1, -2)  # (batch, heads, 1, slots)
        if self.slopes is not None or step.padding_mask is not None:
            scores = self._adjust(scores, step)
        elif slots > seen:
            scores = scores + self._unwritten(index, scores)
        weights = scores.softmax(-1, dtype=compute_dtype(scores)).to(v.dtype)
        if dropout:
            weights = F.dropout(weights, dropout)
        return (weights @ v).squeeze(2), state

    def _unwritten(self, index: int, scores: Tensor) -> Tensor:
        """Return -inf at slots that are still empty, else 0, (slots,)."""
        slots = scores.shape[-1]
        key = (index, slots, scores.dtype, scores.device)
        if key not in self._closed:
            with lasting():
                row = torch.zeros(slots, dtype=scores.dtype, device=scores.device)
                row[index + 1 :] = -torch.inf
                self._closed[key] = row
        return self._closed[key]

    def _adjust(self, scores: Tensor, step: Step) -> Tensor:
        """Add the bias to one token's scores (batch, heads, 1, slots) and close padded keys."""
        # tokens since a slot was written; more than there were, or fewer than 0: it is empty
        age = step.index - torch.arange(scores.shape[-1], device=scores.device)
        age = age if self.window is None else age % self.window
        bias = self.bias(age[None], scores.dtype)
        scores = scores if bias is None else scores + bias
        closed = ((age < 0) | (age > step.index))[None]
        if step.padding_mask is not None:
            padded = step.padding_mask[:, (step.index - age).clamp(0, step.index)]
            # padding sees itself, so that its softmax stays finite
            closed = closed | (padded & (age > 0))
        return scores.masked_fill(closed[:, None, None], -torch.inf)

    def reorder(self, state: Tensor, order: Tensor, tokens: int) -> Tensor:
        """Pick sentences: one copy for keys and values of all heads."""
        return select_slots(state, order, batch=0, slots=3, tokens=tokens, most=self.window)
