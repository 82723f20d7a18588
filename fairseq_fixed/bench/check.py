"""Are contenders that claim one function one function? Asked before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fairseq_fixed.bench.batches import Batch
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.peers.base import PAD, Sublayer

__all__ = ["TOLERANCE", "check_equal"]

#: largest difference allowed, relative to the reference's largest value
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}


def check_equal(
    reference: str, others: Mapping[str, str], layers: Mapping[str, Sublayer], batch: Batch
) -> None:
    """Compare outputs and input gradients at real tokens, without dropout.

    Args:
        reference: a contender's name.
        others: those that must equal it, and in what.
        layers: a sublayer a contender, all with the same weights.
        batch: to run them on.

    Raises:
        BenchError: the first contender that differs, where and by how much.
    """
    expected = _run(layers[reference], batch)
    for name, function in others.items():
        for what, tensor, wanted in zip(
            ("output", "gradient"), _run(layers[name], batch), expected, strict=True
        ):
            scale = float(wanted.abs().max())
            difference = float((tensor - wanted).abs().max())
            if not difference <= TOLERANCE[batch.dtype] * max(scale, 1e-6):
                raise BenchError(
                    f"{name} and {reference} are to compute {function}, but their {what}s differ "
                    f"by {difference:.3g} where values reach {scale:.3g} "
                    f"({batch.tokens.shape[0]} sentences of up to {batch.tokens.shape[1]} tokens, "
                    f"{batch.dtype}): one of them is broken, and its speed would mean nothing"
                )


def _run(layer: Sublayer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return output and input gradient at real tokens, (tokens, d), float32 or better."""
    training = layer.training
    layer.eval()
    try:
        x = batch.inputs(layer.batch_first)[0]
        # compared in one layout: (batch, n, d)
        out = layer(x, layer.prepare(batch.tokens))
        (gradient,) = torch.autograd.grad(out, x, batch.gradient(layer.batch_first))
    finally:
        layer.train(training)
    real = batch.tokens.ne(PAD)
    tensors = (t if layer.batch_first else t.transpose(0, 1) for t in (out.detach(), gradient))
    output, gradient = (t[real].to(torch.promote_types(t.dtype, torch.float32)) for t in tensors)
    return output, gradient
