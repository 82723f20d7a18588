"""How translation-invariant a trained encoder's use of positions is (arXiv 2106.01950)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from fairseq_fixed.analysis.toeplitz import toeplitz_r2
from fairseq_fixed.attention import Head, MixedHeadAttention, head_class
from fairseq_fixed.attention.tisa import Tisa

__all__ = ["Invariance", "measure_positions", "position_embeddings", "tisa_functions"]


@dataclass(frozen=True)
class Invariance:
    """How much of a matrix of positions its nearest Toeplitz matrix explains.

    Attributes:
        what: `E Eᵀ`, or the head, such as `layer 0 head 3`.
        r2: share of the variance, 1 for what depends on j - i alone.
        r2_off_diagonal: the same without the main diagonal.
    """

    what: str
    r2: float
    r2_off_diagonal: float


def position_embeddings(encoder: Any, n: int) -> Tensor | None:
    """Return what an encoder adds to the first n positions' tokens, (n, d) float64; None: nothing.

    Raises:
        ValueError: more positions than the encoder has.
    """
    if encoder.embed_positions is None:
        return None
    longest = encoder.max_source_positions
    if not 2 <= n <= longest:
        raise ValueError(f"{n} positions: the encoder has {longest}, and 2 are the least")
    # any tokens but padding: positions alone are looked up
    tokens = torch.full((1, n), encoder.padding_idx + 1)
    with torch.no_grad():
        return encoder.embed_positions(tokens)[0].double()


def measure_positions(encoder: Any, n: int, border: int = 0) -> list[Invariance]:
    """Measure E Eᵀ, and E W_Q W_Kᵀ Eᵀ for each head of the first layer that scores.

    The first layer alone sees the embeddings as they are, before its norm where that comes first.
    As in the paper, without the projections' biases.

    Args:
        encoder: a `FixedTransformerEncoder`.
        n: positions.
        border: of them left out at each end.

    Raises:
        ValueError: too many positions, or too few between the borders; no position embeddings.
    """
    embeddings = position_embeddings(encoder, n)
    if embeddings is None:
        raise ValueError("this encoder has no position embeddings")
    matrices = {"E Eᵀ": embeddings @ embeddings.t()}
    attention = next(m for m in encoder.modules() if isinstance(m, MixedHeadAttention))
    for head, (q, k) in _projections(attention).items():
        matrices[f"layer 0 head {head}"] = (embeddings @ q.t()) @ (embeddings @ k.t()).t()
    return [
        Invariance(
            what,
            float(toeplitz_r2(matrix, border=border)),
            float(toeplitz_r2(matrix, border=border, diagonal=False)),
        )
        for what, matrix in matrices.items()
    ]


def _projections(attention: MixedHeadAttention) -> dict[int, tuple[Tensor, Tensor]]:
    """Return W_Q and W_K, (head_dim, d) float64 each, of the heads that score, by head."""
    if attention.q_proj is None or attention.k_proj is None:
        return {}
    d = attention.head_dim
    pairs = zip(
        attention.q_proj.weight.detach().double().split(d),
        attention.k_proj.weight.detach().double().split(d),
        strict=True,
    )
    scored = [i for i, spec in enumerate(attention.specs) if head_class(spec.kind).scored]
    return dict(zip(scored, pairs, strict=True))


def tisa_functions(encoder: Any, reach: int) -> dict[str, list[float]]:
    """Return each TISA head's f(k) at k = -reach … reach, by `layer 0 head 3`.

    Heads are counted among all heads of their layer. Empty for a model without TISA.
    """
    distance = torch.arange(-reach, reach + 1)
    found: dict[str, list[float]] = {}
    layers = [m for m in encoder.modules() if isinstance(m, MixedHeadAttention)]
    for number, attention in enumerate(layers):
        head = 0
        for run in cast("Iterable[Head]", attention.runs):
            tisa = getattr(run, "tisa", None)
            if isinstance(tisa, Tisa):
                with torch.no_grad():
                    for offset, values in enumerate(tisa(distance).tolist()):
                        found[f"layer {number} head {head + offset}"] = [
                            round(value, 5) for value in values
                        ]
            head += run.num_heads
    return found
