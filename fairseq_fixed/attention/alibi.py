"""ALiBi heads: learned scores with a fixed penalty on distance (Press, Smith, Lewis 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_fixed.attention.learned import Learned
from fairseq_fixed.attention.tisa import toeplitz
from fairseq_fixed.layout import SequenceLayout

__all__ = ["Alibi"]


class Alibi(Learned):
    """softmax(QKᵀ/√k - slope_h · |i - j|): in TISA's formula, a fixed f(k) = -slope_h · |k|.

    The symmetric form, for encoders; ALiBi itself is causal. Slopes are ALiBi's geometric series
    over the run's H heads, slope_h = 2^(-8h/H) for h = 1 … H, from steep to flat: so write ALiBi
    heads side by side. A TISA bias, where there is one, is added.
    """

    def slopes(self) -> Tensor:
        """Return the penalty of one token's distance, (heads,) float64."""
        head = torch.arange(1, self.num_heads + 1, dtype=torch.float64)
        return torch.exp2(-8 * head / self.num_heads)

    def bias(self, layout: SequenceLayout, dtype: torch.dtype) -> Tensor | None:
        """Return -slope · |i - j|, (1, heads, n, n): 2n - 1 distances seen as Toeplitz."""

        def make() -> Tensor:
            distance = torch.arange(1 - layout.n, layout.n, dtype=torch.float64).abs()
            diagonals = -self.slopes()[:, None] * distance
            return toeplitz(diagonals.to(device=layout.device, dtype=dtype))[None]

        penalty = layout.memo(("alibi", self.num_heads, dtype), make)
        learned = super().bias(layout, dtype)
        return penalty if learned is None else penalty + learned
