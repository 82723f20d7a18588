"""Are contenders that claim one function one function? Asked before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fairseq_fixed.bench.batches import Batch
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.peers.base import PAD, Sublayer

__all__ = ["TOLERANCE", "check_equal", "check_tensors"]

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
    if not others:
        return
    expected = _run(layers[reference], batch)
    for name, function in others.items():
        for what, tensor, wanted in zip(
            ("output", "gradient"), _run(layers[name], batch), expected, strict=True
        ):
            check_tensors(
                (name, tensor),
                (reference, wanted),
                function=function,
                what=what,
                dtype=batch.dtype,
                shape=batch.shape,
            )


def check_tensors(
    mine: tuple[str, Tensor],
    reference: tuple[str, Tensor],
    *,
    function: str,
    what: str,
    dtype: torch.dtype,
    shape: tuple[int, int],
) -> None:
    """Compare two contenders' tensors.

    Args:
        mine: a contender's name and tensor.
        reference: the same of the one it must equal.
        function: that both are to compute.
        what: the tensors are.
        dtype: they were computed in.
        shape: sentences and positions of the batch.

    Raises:
        BenchError: they differ; where, and by how much.
    """
    tensors = [
        tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        for _, tensor in (mine, reference)
    ]
    scale = float(tensors[1].abs().max())
    difference = float((tensors[0] - tensors[1]).abs().max())
    # written so that NaN is a difference
    if not difference <= TOLERANCE[dtype] * max(scale, 1e-6):
        raise BenchError(
            f"{mine[0]} and {reference[0]} are to compute {function}, but their {what}s differ by "
            f"{difference:.3g} where values reach {scale:.3g} ({shape[0]} sentences of up to "
            f"{shape[1]} tokens, {dtype}): one of them is broken, and its speed would mean nothing"
        )


def _run(layer: Sublayer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return output and input gradient at real tokens, (tokens, d)."""
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
    output, gradient = (
        (t if layer.batch_first else t.transpose(0, 1))[real] for t in (out.detach(), gradient)
    )
    return output, gradient
