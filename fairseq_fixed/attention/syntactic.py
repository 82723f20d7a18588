"""Syntactic heads Σ₂: a band whose entries are dropped at random in training (arXiv 2409.00068)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_fixed.attention.banded import band_product, toeplitz_product
from fairseq_fixed.attention.base import Head, compute_dtype
from fairseq_fixed.layout import SequenceLayout

__all__ = ["BandDraw", "Syntactic"]

#: How many keys a row draws for the sparse noise.
NOISE_KEYS = 2


class BandDraw(NamedTuple):
    """One random draw of the heads' matrices; rows sum to one.

    Attributes:
        band: (n, batch, heads, 2w + 1), the weight of key i - w … i + w in row i; w is W, or
            n - 1 where that is less.
        noise_keys: (n, batch, heads, NOISE_KEYS) int64, keys outside the band, or None.
        noise: of the same shape, their weights, at most ε; or None.
    """

    band: Tensor
    noise_keys: Tensor | None = None
    noise: Tensor | None = None


class Syntactic(Head):
    """Attention to the tokens with |i - j| ≤ W, without queries and keys (Σ₂ of section 3).

    At evaluation each of a row's m in-sentence entries is 1/m. In training every entry is dropped
    with the probability p, independently by row, head and sentence; what is left weighs the same,
    rows are normalised after dropping, and an emptied row is the identity. (The thesis's
    validation drew the kept entries from U(0.7, 1) rather than 1.)

    Sparse noise, ε > 0, in training alone: every row draws 2 keys of its sentence uniformly; one
    that falls outside the band, and was not drawn before, gets a weight from U(0, ε) before the
    row is normalised, where a kept entry weighs 1. So no entry of the noise exceeds ε afterwards.
    The thesis bounds the noise alike; how many entries it has is ours.

    Draws depend on the generator's state and so on the batch; evaluation does not.

    Args:
        num_heads: neighbouring heads of this kind.
        head_dim: channels of a head.
        width: W; 0 is the identity.
        syntactic_dropout: p; the thesis has 0.4.
        syntactic_noise: ε.

    Raises:
        ValueError: p or ε outside 0 to 1, or a negative W.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        width: int,
        *,
        syntactic_dropout: float = 0.4,
        syntactic_noise: float = 0.0,
    ) -> None:
        super().__init__(num_heads, head_dim)
        if width < 0:
            raise ValueError(f"syntactic: the width is {width}; it must not be negative")
        for name, value in (("dropout", syntactic_dropout), ("noise", syntactic_noise)):
            if not 0 <= value <= 1:
                raise ValueError(f"syntactic_{name} is {value}; it must lie between 0 and 1")
        self.width = width
        self.dropout = syntactic_dropout
        self.noise = syntactic_noise

    def _width(self, layout: SequenceLayout) -> int:
        return min(self.width, max(layout.n - 1, 0))

    def _keys(self, layout: SequenceLayout) -> Tensor:
        """Return which positions may be attended to, (n, batch) bool."""
        return layout.attendable.t()

    def draw(self, layout: SequenceLayout, dtype: torch.dtype = torch.float32) -> BandDraw:
        """Draw the heads' matrices of one forward pass in training: O(n·W)."""
        width = self._width(layout)
        keys = self._keys(layout)
        shape = (layout.n, layout.batch, self.num_heads)

        def in_sentence() -> Tensor:
            # (n, batch, 1, 2w + 1): whether key i + k is there
            return F.pad(keys, (0, 0, width, width)).unfold(0, 2 * width + 1, 1)[:, :, None]

        there = layout.memo(("syntactic keys", width), in_sentence)
        kept = torch.rand(*shape, 2 * width + 1, device=layout.device) >= self.dropout
        band = (kept & there).to(dtype)
        band[..., width] += band.sum(-1) == 0
        if not self.noise:
            return BandDraw(band / band.sum(-1, keepdim=True))

        index = torch.rand(*shape, NOISE_KEYS, device=layout.device) * layout.length[:, None, None]
        last = (layout.length - 1).clamp(min=0)[:, None, None]
        index = torch.minimum(index.long(), last) + layout.start[:, None, None]
        query = torch.arange(layout.n, device=layout.device)[:, None, None, None]
        usable = (index - query).abs() > width
        sentence = torch.arange(layout.batch, device=layout.device)[:, None, None]
        usable &= keys[index, sentence]
        for later in range(1, NOISE_KEYS):
            earlier = index[..., :later]
            usable[..., later] &= (earlier != index[..., later : later + 1]).all(-1)
        noise = torch.rand(*shape, NOISE_KEYS, device=layout.device, dtype=dtype) * self.noise
        noise = noise * usable
        total = band.sum(-1, keepdim=True) + noise.sum(-1, keepdim=True)
        return BandDraw(band / total, index, noise / total)

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        draw: BandDraw | None = None,
    ) -> Tensor:
        """Return (batch, num_heads, n, n): 1/m in the band; in training, a draw.

        Args:
            layout: of the batch.
            queries: not used.
            keys: not used.
            dtype: of the result.
            draw: the draw to show; in training, None draws anew.
        """
        n = layout.n
        position = torch.arange(n, device=layout.device)
        if draw is None and not self.drops:
            near = (position[:, None] - position[None, :]).abs() <= self.width
            matrix = (near & layout.visible).double()
            matrix = matrix / matrix.sum(-1, keepdim=True).clamp(min=1)
            return matrix.to(dtype)[:, None].expand(-1, self.num_heads, -1, -1)
        draw = draw or self.draw(layout, dtype)
        width = self._width(layout)
        matrix = torch.zeros(layout.batch, self.num_heads, n, n, dtype=dtype, device=layout.device)
        offsets = torch.arange(-width, width + 1, device=layout.device)
        # keys beyond the batch have the weight zero, wherever it is added
        columns = (position[:, None] + offsets).clamp(0, n - 1).expand(*matrix.shape[:3], -1)
        matrix = matrix.scatter_add(3, columns, draw.band.permute(1, 2, 0, 3).to(dtype))
        if draw.noise_keys is not None and draw.noise is not None:
            columns = draw.noise_keys.permute(1, 2, 0, 3)
            matrix = matrix.scatter_add(3, columns, draw.noise.permute(1, 2, 0, 3).to(dtype))
        return matrix * layout.visible[:, None]

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        *,
        draw: BandDraw | None = None,
    ) -> Tensor:
        """Average the band, or apply a draw of it: O(n·W), forward and backward."""
        dtype = compute_dtype(values)
        if draw is None and not self.drops:
            return self._mean(values.to(dtype), layout).to(values.dtype)
        draw = draw or self.draw(layout, dtype)
        split = values.to(dtype).unflatten(2, (self.num_heads, self.head_dim))
        out = band_product(split, draw.band.to(dtype))
        if draw.noise_keys is not None and draw.noise is not None:
            index = draw.noise_keys[..., None].expand(-1, -1, -1, -1, self.head_dim)
            for entry in range(NOISE_KEYS):
                weight = draw.noise[..., entry, None].to(dtype)
                out = out + weight * split.gather(0, index[..., entry, :])
        return out.flatten(2).to(values.dtype)

    def _mean(self, values: Tensor, layout: SequenceLayout) -> Tensor:
        width = self._width(layout)
        ones = [1.0] * (2 * width + 1)

        def inverse() -> Tensor:
            count = self._keys(layout)[:, :, None].to(values.dtype)
            return toeplitz_product(count, ones, -width).clamp(min=1).reciprocal()

        shares = layout.memo(("syntactic shares", width, values.dtype), inverse)
        return toeplitz_product(values, ones, -width) * shares

    def extra_repr(self) -> str:
        """Name size, band and probability."""
        return f"{super().extra_repr()}, width={self.width}, dropout={self.dropout:g}"
