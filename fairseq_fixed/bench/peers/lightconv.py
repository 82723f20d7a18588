"""fairseq's LightConv: a convolution in place of self-attention (Wu et al. 2019)."""

from __future__ import annotations

import contextlib
import io

from fairseq.modules.lightweight_convolution import LightweightConv
from torch import Tensor, nn

from fairseq_fixed.bench.peers.base import Sublayer

__all__ = ["KERNELS", "LightConv"]

#: `lightconv_iwslt_de_en`'s kernel sizes, layer by layer
KERNELS = (3, 7, 15, 31, 31, 31, 31)


class LightConv(Sublayer):
    """What stands in fairseq's `LightConvEncoderLayer` where attention stands in a transformer's.

    Linear, convolution over time with softmaxed weights shared in as many groups as there are
    heads, linear: as in `lightconv_iwslt_de_en`, without the gated linear unit of larger
    architectures, which would double the first projection. It is not attention: another function,
    compared for its cost alone. The attention dropout is the convolution's weight dropout.

    Args:
        d: channels.
        heads: groups of channels that share a kernel.
        dropout: of the kernels' weights.
        layer: which of an encoder's: later ones have wider kernels.
    """

    def __init__(self, d: int, heads: int, dropout: float, layer: int):
        super().__init__()
        kernel = KERNELS[min(layer, len(KERNELS) - 1)]
        self.linear1 = nn.Linear(d, d)
        # prints where its CUDA kernel was not compiled
        with contextlib.redirect_stdout(io.StringIO()):
            self.conv = LightweightConv(
                d,
                kernel,
                padding_l=kernel // 2,
                weight_softmax=True,
                num_heads=heads,
                weight_dropout=dropout,
            )
        self.linear2 = nn.Linear(d, d)

    def forward(self, x: Tensor, prepared: Tensor | None) -> Tensor:
        """Convolve; x is (n, batch, d), `prepared` the padding mask."""
        x = self.linear1(x)
        if prepared is not None:
            x = x.masked_fill(prepared.transpose(0, 1).unsqueeze(2), 0)
        return self.linear2(self.conv(x))
