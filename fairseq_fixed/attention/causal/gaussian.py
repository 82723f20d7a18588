"""Hard-coded Gaussian heads of a decoder (You, Sun, Iyyer 2020: offsets -1 and 0)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import cast

import torch
from torch import Tensor

from fairseq_fixed.attention.banded import toeplitz_product
from fairseq_fixed.attention.base import compute_dtype
from fairseq_fixed.attention.causal.base import FixedHeads, lasting, prefix_weights
from fairseq_fixed.attention.causal.layout import CausalLayout, Step
from fairseq_fixed.attention.causal.slots import select_slots, write_slot
from fairseq_fixed.attention.gaussian import Gaussian as EncoderGaussian
from fairseq_fixed.heads import HeadsError, HeadSpec

__all__ = ["Gaussian"]

#: Rows of this many first tokens are kept, and the one that all later tokens share.
KEPT = 256


class Gaussian(FixedHeads):
    """Row i is ∝ exp(-½((j - i - offset)/σ)²) over j ≤ i, or the density itself.

    A step sees the last values alone, up to where the weight is below 2^-24 of the largest (seven
    of them for `gaussian:-1:1`), in a ring: a new value takes the place of the oldest.

    Args:
        specs: one a head.
        head_dim: channels of a head.
        edge: what a row holds whose keys all lie before the sentence; see `FixedHead`.
        gaussian_rows: `renormalized`, rows sum to one over the keys there are; or `density`.

    Raises:
        HeadsError: a Gaussian that reaches neither the token itself nor one before it.
        ValueError: an unknown `edge` or `gaussian_rows`.
    """

    def __init__(
        self,
        specs: Sequence[HeadSpec],
        head_dim: int,
        *,
        edge: str = "zero",
        gaussian_rows: str = "renormalized",
    ) -> None:
        super().__init__(specs, head_dim, edge=edge, gaussian_rows=gaussian_rows)
        self.gaussians = cast("dict[HeadSpec, EncoderGaussian]", self.definitions)
        for spec, head in self.gaussians.items():
            if head.low > 0:
                raise HeadsError(
                    f"heads: a decoder cannot have {str(spec)!r}: it attends to tokens that are "
                    f"not written yet, {head.low} and more to the right"
                )
        #: tokens that the widest Gaussian sees
        self.reach = 1 - min(head.low for head in self.gaussians.values())
        self._rows: dict[object, Tensor] = {}

    def rows(self, i: Tensor, j: Tensor) -> Tensor:
        """Return renormalised rows, or the density."""
        each = {
            spec: head.scale * head.at(j - i) * ((j >= 0) & (j <= i))
            if head.density
            else prefix_weights(head, i, j)
            for spec, head in self.gaussians.items()
        }
        return torch.stack([each[spec] for spec in self.specs], dim=1)

    def attend(
        self,
        values: Tensor,
        layout: CausalLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Sum the last values, normalise: O(n·σ)."""
        outs, first = [], 0
        for spec, run in groupby(self.specs):
            count = len(list(run))
            part = values[:, :, first : first + count].flatten(2)
            outs.append(self._attend(spec, part, layout).unflatten(2, (count, -1)))
            first += count
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)

    def _attend(self, spec: HeadSpec, values: Tensor, layout: CausalLayout) -> Tensor:
        head = self.gaussians[spec]
        dtype = compute_dtype(values)
        low = max(head.low, 1 - layout.n)
        # no distance at all where the whole Gaussian lies before the batch's first token
        taps = head.at(torch.arange(low, max(low, min(head.high, 0) + 1)).double()).tolist()
        sums = toeplitz_product(values.to(dtype), taps, low)
        if head.density:
            return (sums * head.scale).to(values.dtype)

        def totals() -> tuple[Tensor, Tensor]:
            inside = (layout.position >= 0).to(dtype)[:, :, None]
            inside = inside[:, :1] if layout.padding_mask is None else inside
            total = toeplitz_product(inside, taps, low)
            empty = total == 0
            return empty, total.masked_fill(empty, 1).reciprocal()

        empty, inverse = layout.memo(("gaussian", spec, dtype), totals)
        out = (sums * inverse).to(values.dtype)
        if head.edge == "zero" or head.high >= 0:
            return out
        if head.edge == "self":
            return torch.where(empty, values, out)
        sentence = torch.arange(layout.batch, device=values.device)
        first = values[layout.start.clamp(max=layout.n - 1), sentence]
        return torch.where(empty, first, out)

    def step(
        self, inputs: Tensor, step: Step, state: Tensor | None, dropout: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        """Weigh the ring; the state is (heads, slots, batch, head_dim), float32 at least."""
        # (batch, heads, 1, head_dim) -> (heads, batch, head_dim)
        x = inputs.to(compute_dtype(inputs)).squeeze(2).transpose(0, 1)
        index = step.index
        state = write_slot(state, x[:, None], slots=1, index=index, most=self.reach)
        ring = state[:, : index + 1]
        if step.position is None:
            row = self._row(index, x)
            out = torch.bmm(row, ring.flatten(2)).view(x.shape)
        else:
            age = (index - torch.arange(ring.shape[1], device=x.device)) % self.reach
            i = step.position[:, None, None].double()
            row = self.rows(i, i - age).to(x.dtype)
            out = torch.einsum("bhqs,hsbd->hbd", row, ring)
        return out.transpose(0, 1).to(inputs.dtype), state

    def _row(self, index: int, like: Tensor) -> Tensor:
        """Return every head's weights by the ring's slots, (heads, 1, slots)."""
        steady = index >= self.reach
        key = (self.reach if steady else index, like.dtype, like.device)
        row = self._rows.get(key)
        if row is None:
            with lasting():
                j = torch.arange(min(index + 1, self.reach), dtype=torch.float64)
                row = self.rows(j[-1:].view(1, 1, 1), j.view(1, 1, -1))[0]
                # read from a moving start, the ring's rotations are slices
                row = torch.cat([row, row], dim=-1) if steady else row
                row = row.to(like.device, like.dtype)
            if steady or index < KEPT:
                self._rows[key] = row
        return row.narrow(-1, self.reach - 1 - index % self.reach, self.reach) if steady else row

    def reorder(self, state: Tensor, order: Tensor, tokens: int) -> Tensor:
        """Pick sentences: one copy for all heads."""
        return select_slots(state, order, batch=2, slots=1, tokens=tokens, most=self.reach)
