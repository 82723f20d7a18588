"""Hard-coded Gaussian heads (You, Sun, Iyyer 2020: "Hard-Coded Gaussian Attention for NMT")."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fairseq_fixed.attention.banded import toeplitz_product
from fairseq_fixed.attention.base import FixedHead, compute_dtype
from fairseq_fixed.layout import SequenceLayout

__all__ = ["GAUSSIAN_ROWS", "Gaussian"]

GAUSSIAN_ROWS = ("renormalized", "density")

#: Weights below 2^-24 of a row's largest are left out: half an ulp of float32.
_RESOLUTION = 2 * 24 * math.log(2)


class Gaussian(FixedHead):
    """Row i is ∝ exp(-½((j - (i + offset))/σ)²).

    The paper's encoder has σ = 1 and the offsets -1 and +1. Distances k = j - i at which the
    weight is below 2^-24 of that at the distance nearest to `offset` are left out, so that the
    operator costs O(n·σ) (about 11.5σ + 1 keys a query). In a row whose centre lies in the
    sentence, what is left out weighs less than float32 resolves (tested). A row whose centre lies
    so far outside that nothing is left is an edge row, like row 0 of `previous`, which is the
    limit of `gaussian:-1:σ` for σ → 0.

    Args:
        num_heads: neighbouring heads of this kind.
        head_dim: channels of a head.
        offset: tokens from the query to the centre; negative: to the left. Need not be whole.
        sigma: standard deviation in tokens, > 0.
        edge: what an edge row holds; see :class:`FixedHead`.
        gaussian_rows: `renormalized`, every row sums to one, also where the Gaussian reaches over
            the sentence's border; `density`, weights are the density of N(i + offset, σ²) and
            rows near the border (and, for σ < ½, all rows) do not sum to one, as in the authors'
            code. With `density` an edge row is zero, whatever `edge` says.

    Raises:
        ValueError: sigma is not positive, or an unknown `edge` or `gaussian_rows`.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        offset: float,
        sigma: float,
        *,
        edge: str = "zero",
        gaussian_rows: str = "renormalized",
    ) -> None:
        super().__init__(num_heads, head_dim, edge=edge)
        if not sigma > 0:
            raise ValueError(f"gaussian: sigma is {sigma}; it must be positive")
        if gaussian_rows not in GAUSSIAN_ROWS:
            raise ValueError(
                f"gaussian_rows is {gaussian_rows!r}; it must be one of {', '.join(GAUSSIAN_ROWS)}"
            )
        self.offset = float(offset)
        self.sigma = float(sigma)
        self.density = gaussian_rows == "density"
        # Squares are taken relative to the nearest whole distance: with offset ½ and a small σ
        # the density itself would underflow at every token.
        self.nearest = abs(self.offset - round(self.offset)) ** 2
        reach = math.sqrt(self.nearest + _RESOLUTION * self.sigma**2)
        self.low = math.ceil(self.offset - reach)
        self.high = math.floor(self.offset + reach)

    @property
    def scale(self) -> float:
        """The density at the distance whose weight is 1 here."""
        peak = 1 / (self.sigma * math.sqrt(2 * math.pi))
        return peak * math.exp(-0.5 * self.nearest / self.sigma**2)

    def at(self, distance: Tensor) -> Tensor:
        """Return the unnormalised weight at distances j - i, floating point; largest: 1."""
        squares = (distance - self.offset).square() - self.nearest
        inside = (distance >= self.low) & (distance <= self.high)
        return torch.exp(-0.5 * squares / self.sigma**2) * inside

    def rows(self, i: Tensor, j: Tensor, n: Tensor) -> Tensor:
        """exp(-½((j - i - offset)/σ)²), up to a factor."""
        return self.at(j - i)

    def edge_key(self, n: Tensor) -> Tensor:
        """Return the first position where the Gaussian looks left, else the last."""
        return torch.zeros_like(n) if self.offset < 0 else n - 1

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return (batch, num_heads, n, n): renormalised rows, or the density."""
        if not self.density:
            return super().weights(layout, queries, keys, dtype)
        position = layout.position.t().double()
        matrix = self.scale * self.at(position[:, None, :] - position[:, :, None])
        matrix = (matrix * layout.visible).to(dtype)
        return matrix[:, None].expand(-1, self.num_heads, -1, -1)

    def _product(self, x: Tensor, layout: SequenceLayout) -> Tensor:
        low, high = max(self.low, 1 - layout.n), min(self.high, layout.n - 1)

        def taps() -> list[float]:
            # no distance at all where the whole band lies beyond the sentence
            return self.at(torch.arange(low, max(low, high + 1)).double()).tolist()

        key = ("gaussian taps", self.offset, self.sigma)
        return toeplitz_product(x, layout.memo(key, taps), low)

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Sum a band of values, normalise: O(n·σ)."""
        dtype = compute_dtype(values)
        sums = self._product(values.to(dtype), layout)
        if self.density:
            return (sums * self.scale).to(values.dtype)

        def totals() -> tuple[Tensor, Tensor]:
            total = self._product(layout.inside[:, :, None].to(dtype), layout)
            empty = total == 0
            return empty, total.masked_fill(empty, 1).reciprocal()

        key = ("gaussian totals", self.offset, self.sigma, dtype)
        empty, inverse = layout.memo(key, totals)
        edge_index = layout.start if self.offset < 0 else layout.last
        return self.fill_edge((sums * inverse).to(values.dtype), values, empty, edge_index)

    def extra_repr(self) -> str:
        """Name size and shape."""
        return f"{super().extra_repr()}, offset={self.offset:g}, sigma={self.sigma:g}"
