"""What the heads of a trained encoder attend to, on real sentences."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_fixed.attention import MixedHeadAttention
from fairseq_fixed.attention.mixed import build_head
from fairseq_fixed.checkpoints import CheckpointError, load_checkpoint, save_checkpoint
from fairseq_fixed.conversion import convert_state, model_arguments
from fairseq_fixed.heads import HeadSpec
from fairseq_fixed.layout import SequenceLayout

__all__ = ["PATTERNS", "REACH", "HeadProfile", "load_encoder", "profile_heads", "read_sentences"]

#: fixed patterns that a head is compared with
PATTERNS = ("current", "previous", "next", "left", "right", "start", "end", "first", "last")
#: offsets j - i from -REACH to REACH are told apart
REACH = 10


@dataclass(frozen=True)
class HeadProfile:
    """A head's attention, averaged over the tokens (queries) of all sentences.

    Attributes:
        layer: from 0.
        head: from 0.
        kind: as in the grammar.
        offsets: (2 · REACH + 1) mean weight at j - i from -REACH to REACH.
        within: mean weight at |j - i| ≤ w, by w from 0 to REACH.
        entropy: of rows, in bits.
        pattern: of `PATTERNS`, the one that is nearest; `none` for a head that attends to nothing.
        difference: mean over the rows of max(Σ_j h_ij, Σ_j p_ij) - Σ_j min(h_ij, p_ij), from 0 (the
            pattern itself) to 1 (nothing in common): where both rows sum to one, half the sum of
            |h_ij - p_ij|. A row that is empty in one of them, as the first of `previous`, has
            nothing in common, and counts 1.
    """

    layer: int
    head: int
    kind: str
    offsets: tuple[float, ...]
    within: tuple[float, ...]
    entropy: float
    pattern: str
    difference: float

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return vars(self)


def load_encoder(checkpoint: Path | str, data: Path | str | None = None) -> tuple[Any, Any]:
    """Load a model's encoder; a vanilla one as an encoder of learned heads.

    Args:
        checkpoint: of `transformer` and its like, or `fixed_transformer`.
        data: folder of binarised data with the dictionaries; None: where it was trained.

    Returns:
        The encoder, in evaluation, and fairseq's task.

    Raises:
        CheckpointError: a checkpoint that cannot be read or converted, or no dictionaries.
    """
    from fairseq import checkpoint_utils

    from fairseq_fixed.models import FixedTransformerModel

    state = load_checkpoint(checkpoint)
    args = model_arguments(state, checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(checkpoint)
        if not getattr(args, "encoder_heads", ""):
            path = Path(folder) / "learned.pt"
            heads = f"{args.encoder_attention_heads}l"
            convert_state(state, checkpoint, encoder_heads=heads)
            save_checkpoint(state, path)
        try:
            (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
                [str(path)], arg_overrides={} if data is None else {"data": str(data)}
            )
        except FileNotFoundError as error:
            where = "are not where it was trained" if data is None else f"are not in {data}"
            raise CheckpointError(
                f"{checkpoint}: its dictionaries {where} ({error}); --data is the folder of "
                "binarised data, with dict.LANG.txt in it"
            ) from error
    assert isinstance(model, FixedTransformerModel)
    return model.encoder.eval(), task


def read_sentences(task: Any, split: str, limit: int) -> list[Tensor]:
    """Return the first source sentences of a split, as token indices with `</s>`.

    Raises:
        CheckpointError: there is no such split.
    """
    try:
        task.load_dataset(split)
    except FileNotFoundError as error:
        raise CheckpointError(f"no binarised split {split!r}: {error}") from error
    source = task.dataset(split).src
    return [source[i].long() for i in range(min(limit, len(source)))]


@torch.no_grad()
def profile_heads(encoder: Any, sentences: Sequence[Tensor]) -> list[HeadProfile]:
    """Average what each head of each layer attends to.

    Args:
        encoder: from :func:`load_encoder`.
        sentences: token indices, each (n,) int64, with `</s>`; all their tokens are queries.

    Raises:
        ValueError: no sentence.
    """
    if not sentences:
        raise ValueError("no sentences to look at")
    modules = [m for m in encoder.modules() if isinstance(m, MixedHeadAttention)]
    heads = modules[0].num_heads
    sums = _Sums(len(modules), heads)
    for tokens in sentences:
        for layer, weights, layout in _weights_of(encoder, modules, tokens):
            sums.add(layer, weights, layout)
    kinds = [[str(spec) for spec in module.specs] for module in modules]
    return sums.profiles(kinds)


def _weights_of(
    encoder: Any, modules: Sequence[MixedHeadAttention], tokens: Tensor
) -> Iterator[tuple[int, Tensor, SequenceLayout]]:
    """Run one sentence; yield each layer's matrices (heads, n, n) float64."""
    seen: list[tuple[int, Tensor, SequenceLayout]] = []

    def look(layer: int) -> Any:
        def hook(module: MixedHeadAttention, inputs: tuple[Any, ...]) -> None:
            x, layout = inputs
            seen.append((layer, module.weights(x, layout)[0].double(), layout))

        return hook

    handles = [m.register_forward_pre_hook(look(i)) for i, m in enumerate(modules)]
    try:
        encoder(tokens[None], torch.tensor([len(tokens)]))
    finally:
        for handle in handles:
            handle.remove()
    yield from seen


class _Sums:
    """Sums over the rows of all sentences."""

    def __init__(self, layers: int, heads: int) -> None:
        self.rows = 0
        self.offsets = torch.zeros(layers, heads, 2 * REACH + 1, dtype=torch.float64)
        self.entropy = torch.zeros(layers, heads, dtype=torch.float64)
        self.masses = torch.zeros(layers, heads, dtype=torch.float64)
        self.differences = torch.zeros(layers, heads, len(PATTERNS), dtype=torch.float64)

    def add(self, layer: int, weights: Tensor, layout: SequenceLayout) -> None:
        """Add one sentence's matrices of a layer, (heads, n, n)."""
        n = weights.shape[-1]
        if layer == 0:
            self.rows += n
        position = torch.arange(n)
        offset = position - position[:, None]
        near = offset.abs() <= REACH
        self.offsets[layer].index_add_(-1, offset[near] + REACH, weights[:, near])
        self.entropy[layer] -= torch.special.xlogy(weights, weights).sum((-2, -1))
        patterns = layout.memo(("profile patterns",), lambda: _patterns(layout))
        mass = weights.sum(-1)
        self.masses[layer] += mass.sum(-1)
        common = torch.minimum(weights[:, None], patterns).sum(-1)
        masses = torch.maximum(mass[:, None], patterns.sum(-1))
        self.differences[layer] += (masses - common).sum(-1)

    def profiles(self, kinds: Sequence[Sequence[str]]) -> list[HeadProfile]:
        """Return the means."""
        profiles = []
        for layer, names in enumerate(kinds):
            for head, kind in enumerate(names):
                offsets = self.offsets[layer, head] / self.rows
                centre = [offsets[REACH - w : REACH + w + 1].sum() for w in range(REACH + 1)]
                gaps = self.differences[layer, head] / self.rows
                nearest = int(gaps.argmin())
                empty = not self.masses[layer, head]
                profiles.append(
                    HeadProfile(
                        layer=layer,
                        head=head,
                        kind=kind,
                        offsets=tuple(round(float(x), 5) for x in offsets),
                        within=tuple(round(float(x), 5) for x in centre),
                        entropy=round(
                            float(self.entropy[layer, head]) / self.rows / math.log(2), 4
                        ),
                        pattern="none" if empty else PATTERNS[nearest],
                        difference=1.0 if empty else round(float(gaps[nearest]), 5),
                    )
                )
        return profiles


def _patterns(layout: SequenceLayout) -> Tensor:
    """Return the fixed patterns of one sentence, (patterns, n, n) float64."""
    return torch.stack(
        [build_head(HeadSpec(kind), 1, 1, {}).weights(layout)[0, 0].double() for kind in PATTERNS]
    )
