"""Multiply-adds, counted: what a mix can save at most.

Per token of a padded batch of n positions, d channels, h heads of k = d/h channels, forward:

- value and output projections: 2 d²
- query and key projections: 2 d k for each head that scores queries against keys
- a learned head's scores and mixing: 2 n k; a band's: 2 (2W + 1) k, no more than a learned one's
- a trained or random matrix (`random`): n k
- fixed heads: none. Shifts and running sums are O(k) additions a token, and are not counted.

Backward: twice the projections'. Scores and mixing cost 5/2 of the forward again, as a fused kernel
recomputes the scores: of five products one is the forward's. The rest of a transformer:

- feed-forward: 2 d f a token of its side
- decoder self-attention: 4 d² + 2 m d a target token, m target positions (a causal mask saves none
  of it in fairseq); attention to the encoder: 2 d² + 2 n d a target token, 2 d² a source token
- output projection: V d a target token

backward twice that. Embedding, norms, softmax, dropout, the loss and the optimizer are not
counted: they cost memory traffic rather than multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairseq_fixed.attention import head_class
from fairseq_fixed.heads import HeadSpec

__all__ = ["Macs", "Sizes", "attention_macs", "counted_limit", "step_macs"]

_MATRIX = ("random", "random_frozen")


@dataclass(frozen=True)
class Macs:
    """Multiply-adds of projections (and other plain products), and of scores and mixing."""

    products: float
    scores: float = 0.0

    def total(self, backward: bool) -> float:
        """Return the multiply-adds of a forward pass, or of a forward and a backward pass."""
        return 3 * self.products + 3.5 * self.scores if backward else self.products + self.scores

    def times(self, count: float) -> Macs:
        """Return those of `count` tokens or layers."""
        return Macs(self.products * count, self.scores * count)

    def plus(self, other: Macs) -> Macs:
        """Return both together."""
        return Macs(self.products + other.products, self.scores + other.scores)


def attention_macs(specs: Sequence[HeadSpec], n: int, d: int) -> Macs:
    """Return the multiply-adds of a self-attention sublayer a token."""
    k = d // len(specs)
    products, scores = 2.0 * d * d, 0.0
    for spec in specs:
        if head_class(spec.kind).scored:
            products += 2 * d * k
            keys: float = n
            if spec.kind == "band":
                keys = min(n, 2 * spec.args[0] + 1 + spec.args[1])
            scores += 2 * keys * k
        elif spec.kind in _MATRIX:
            products += n * k
    return Macs(products, scores)


def counted_limit(
    specs: Sequence[HeadSpec], shapes: Sequence[tuple[int, int]], d: int, backward: bool
) -> float:
    """Return how many times faster than all heads learned a mix can be, by multiply-adds.

    Args:
        specs: of the mix.
        shapes: (sentences, positions) of each batch.
        d: channels.
        backward: whether a backward pass follows.
    """
    learned = [HeadSpec("learned")] * len(specs)
    costs = [
        sum(batch * n * attention_macs(heads, n, d).total(backward) for batch, n in shapes)
        for heads in (learned, specs)
    ]
    return costs[0] / costs[1]


@dataclass(frozen=True)
class Sizes:
    """A transformer's sizes: layers and feed-forward channels of both sides, d, vocabulary."""

    d: int
    encoder_layers: int
    encoder_ffn: int
    decoder_layers: int
    decoder_ffn: int
    vocabulary: int


def step_macs(
    sizes: Sizes,
    mixes: Sequence[Sequence[HeadSpec]],
    shapes: Sequence[tuple[int, int, int]],
) -> tuple[Macs, Macs]:
    """Count a training step's forward pass; `total(True)` of it counts the step.

    Args:
        sizes: of the model.
        mixes: the heads of each encoder layer.
        shapes: (sentences, source positions, target positions) of each batch.

    Returns:
        Multiply-adds of the encoder's self-attention, and of the whole pass.
    """
    d = sizes.d
    attention = rest = Macs(0.0)
    for batch, n, m in shapes:
        source, target = batch * n, batch * m
        for specs in mixes:
            attention = attention.plus(attention_macs(specs, n, d).times(source))
        encoder = Macs(2.0 * d * sizes.encoder_ffn).times(source * sizes.encoder_layers)
        decoder = (
            Macs(4.0 * d * d, 2.0 * m * d)  # itself
            .plus(Macs(2.0 * d * d, 2.0 * n * d))  # the encoder: queries and output, scores
            .plus(Macs(2.0 * d * sizes.decoder_ffn))
            .times(target)
            .plus(Macs(2.0 * d * d).times(source))  # the encoder's keys and values
            .times(sizes.decoder_layers)
        )
        output = Macs(float(sizes.vocabulary * d)).times(target)
        rest = rest.plus(encoder).plus(decoder).plus(output)
    return attention, attention.plus(rest)
