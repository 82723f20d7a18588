"""What every self-attention sublayer of the comparison has."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

__all__ = ["PAD", "Sublayer", "padding_mask"]

#: the index of padding in the benchmark's batches, as in fairseq's dictionaries
PAD = 1


def padding_mask(tokens: Tensor) -> Tensor | None:
    """Return (batch, n) bool, True at padding, or None where there is none.

    As fairseq's encoder hands it to its layers: it looks for padding in every batch and gives
    layers a mask only where there is some.
    """
    mask = tokens.eq(PAD)
    return mask if bool(mask.any()) else None


class Sublayer(nn.Module):
    """A self-attention sublayer: projections, heads, output projection; no norm, no residual."""

    #: whether x is (batch, n, d); otherwise (n, batch, d), as in fairseq's encoder
    batch_first: ClassVar[bool] = False

    def prepare(self, tokens: Tensor) -> Any:
        """Return what an encoder computes once a batch for all its layers: masks, positions.

        It is timed with the layers.
        """
        return padding_mask(tokens)

    def forward(self, x: Tensor, prepared: Any) -> Tensor:
        """Return the sublayer's output, of x's shape; undefined at padding."""
        raise NotImplementedError
