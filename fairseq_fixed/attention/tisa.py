"""Translation-invariant self-attention, TISA (Wennberg & Henter, arXiv 2106.01950)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Tisa", "toeplitz"]


def toeplitz(diagonals: Tensor) -> Tensor:
    """Return F with F[…, i, j] = diagonals[…, j - i + n - 1].

    Args:
        diagonals: (…, 2n - 1), from j - i = -(n - 1) to n - 1.

    Returns:
        (…, n, n).
    """
    n = (diagonals.shape[-1] + 1) // 2
    # window w is diagonals[w : w + n]; row i is window n - 1 - i
    return diagonals.unfold(-1, n, 1).flip(-2)


class Tisa(nn.Module):
    """f(k) = Σ_{s=1..S} a_s · exp(-|b_s| · (k - c_s)²), one f a head, of the distance k = j - i.

    3·S numbers a head, whatever the length. They start as in the authors' released code:
    c ~ N(0, 5²), a ~ N(0.1, 0.01²), b ~ N(0.1, 0.01²).

    Args:
        num_heads: number of functions.
        kernels: S, at least 1.

    Raises:
        ValueError: fewer than one kernel.
    """

    def __init__(self, num_heads: int, kernels: int) -> None:
        super().__init__()
        if kernels < 1:
            raise ValueError(f"TISA needs at least one kernel (--tisa-kernels), got {kernels}")
        self.amplitude = nn.Parameter(torch.empty(num_heads, kernels).normal_(0.1, 0.01))
        self.sharpness = nn.Parameter(torch.empty(num_heads, kernels).normal_(0.1, 0.01))
        self.center = nn.Parameter(torch.empty(num_heads, kernels).normal_(0.0, 5.0))

    def at(self, distance: Tensor) -> Tensor:
        """Return f at distances that differ by head.

        Args:
            distance: (…, heads or 1, rows, columns).

        Returns:
            (…, heads, rows, columns), float32 at least.
        """
        dtype = torch.promote_types(self.amplitude.dtype, torch.float32)
        a, b, c = (
            parameter.to(dtype)[:, None, None, :]
            for parameter in (self.amplitude, self.sharpness, self.center)
        )
        offset = distance.to(dtype)[..., None] - c  # (…, heads, rows, columns, S)
        return (a * torch.exp(-b.abs() * offset.square())).sum(-1)

    def forward(self, distance: Tensor) -> Tensor:
        """Return f at distances (m,), for every head: (heads, m), float32 at least."""
        return self.at(distance[None, None]).squeeze(1)

    def matrix(self, n: int) -> Tensor:
        """Return F[i, j] = f(j - i), (heads, n, n): 2n - 1 values of f, seen as Toeplitz."""
        distance = torch.arange(1 - n, n, device=self.center.device)
        return toeplitz(self(distance))

    def extra_repr(self) -> str:
        """Name the size."""
        heads, kernels = self.center.shape
        return f"num_heads={heads}, kernels={kernels}"
