"""The model's own options: one table from which flags, defaults and head arguments are made."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_fixed.attention import EDGES
from fairseq_fixed.attention.band import PROJECTIONS, SPARSE
from fairseq_fixed.attention.gaussian import GAUSSIAN_ROWS
from fairseq_fixed.heads import HeadsError, HeadSpec
from fairseq_fixed.vocabulary import WORD_BOUNDARIES

__all__ = [
    "OPTIONS",
    "ModelOption",
    "add_options",
    "causal_options",
    "check_options",
    "head_options",
    "set_defaults",
]


@dataclass(frozen=True)
class ModelOption:
    """One option of the model beyond those of fairseq's `transformer`.

    Attributes:
        name: as in a Hydra configuration; `--name-with-dashes` on the command line.
        default: where neither the user nor the architecture says.
        help: for `--help`.
        choices: the values it may take, or None for any of the default's type.
        head: the name under which `MixedHeadAttention` takes it, or None.
    """

    name: str
    default: str | int | float | bool
    help: str
    choices: tuple[str, ...] | None = None
    head: str | None = None

    def check(self, value: object) -> None:
        """Raise ValueError where `value` is not one of the choices."""
        if self.choices is not None and value not in self.choices:
            raise ValueError(
                f"{self.name} is {value!r}; it must be one of {', '.join(self.choices)}"
            )


OPTIONS = (
    ModelOption(
        "encoder_heads",
        "7f+1l",
        "the heads of each encoder layer, such as 7f+1l, 8f, 8l or 0-2@7f+1l/3-5@8l",
    ),
    ModelOption(
        "decoder_heads",
        "",
        "the heads of each decoder layer's self-attention, such as 4xprevious+4l: kinds that look "
        "back alone; empty: fairseq's own decoder",
    ),
    ModelOption(
        "fixed_edge",
        "zero",
        "what a fixed head does where its pattern has nothing to attend to (previous at the "
        "first token): add nothing, attend to the token itself, or to the token at the edge",
        choices=EDGES,
        head="edge",
    ),
    ModelOption(
        "word_boundaries",
        "auto",
        "how the dictionary's symbols show where words begin, for word-based heads: ▁ before a "
        "word (sentencepiece), @@ inside it (subword-nmt), or every token is a word",
        choices=WORD_BOUNDARIES,
    ),
    ModelOption(
        "tisa_kernels",
        0,
        "kernels of the translation-invariant bias (TISA, arXiv 2106.01950) on the scores of "
        "every encoder head that scores queries against keys; 0: no bias; the paper has 5",
        head="tisa_kernels",
    ),
    ModelOption("tisa_shared", False, "all encoder layers share their TISA functions"),
    ModelOption(
        "no_encoder_positional_embeddings",
        False,
        "no position embeddings in the encoder alone (--no-token-positional-embeddings takes the "
        "decoder's away, too)",
    ),
    ModelOption(
        "band_projection",
        "renormalized",
        "where the softmax of band heads runs: inside the band, in O(n W); or over all keys "
        "before the band is cut out (the thesis's exact projection, O(n²))",
        choices=PROJECTIONS,
        head="band_projection",
    ),
    ModelOption(
        "band_sparse",
        "rarity",
        "how band heads choose their further keys: the sentence's rarest tokens, or each head's "
        "longest keys",
        choices=SPARSE,
        head="band_sparse",
    ),
    ModelOption(
        "band_epsilon",
        1.0,
        "what weights of band heads' further keys are clipped to, after the softmax; 1: not",
        head="band_epsilon",
    ),
    ModelOption(
        "syntactic_dropout",
        0.4,
        "probability that an entry of a syntactic head's band is dropped in training",
        head="syntactic_dropout",
    ),
    ModelOption(
        "syntactic_noise",
        0.0,
        "bound of the sparse noise on syntactic heads in training, before rows are normalised",
        head="syntactic_noise",
    ),
    ModelOption(
        "gaussian_rows",
        "renormalized",
        "whether rows of gaussian heads sum to one at the sentence's borders, too, or are the "
        "density itself, as in the authors' code",
        choices=GAUSSIAN_ROWS,
        head="gaussian_rows",
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to fairseq's parser, without defaults: architectures set those."""
    for option in OPTIONS:
        flag = "--" + option.name.replace("_", "-")
        text = f"{option.help} (default: {option.default})"
        if isinstance(option.default, bool):
            parser.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=text)
        else:
            parser.add_argument(
                flag,
                type=type(option.default),
                default=argparse.SUPPRESS,
                choices=option.choices,
                help=text,
            )


def set_defaults(args: argparse.Namespace) -> None:
    """Set every option that `args` lacks to its default."""
    for option in OPTIONS:
        setattr(args, option.name, getattr(args, option.name, option.default))


def check_options(args: object) -> None:
    """Raise ValueError where an option's value is not among its choices."""
    for option in OPTIONS:
        option.check(getattr(args, option.name))


def head_options(args: object) -> dict[str, Any]:
    """Return the options that heads take, by the names they take them under."""
    return {
        option.head: getattr(args, option.name) for option in OPTIONS if option.head is not None
    }


def causal_options(args: object, layers: Sequence[Sequence[HeadSpec]]) -> dict[str, Any]:
    """Return the options that a decoder's heads take.

    Raises:
        HeadsError: an option that the encoder's heads of a kind heed, and the decoder's do not.
    """
    banded = any(spec.kind == "band" for heads in layers for spec in heads)
    projection = getattr(args, "band_projection", "renormalized")
    if banded and projection != "renormalized":
        raise HeadsError(
            f"--band-projection {projection} is for the encoder: band heads of a decoder are "
            "renormalized. Leave it out, or band out of --decoder-heads"
        )
    options = head_options(args)
    return {name: options[name] for name in ("edge", "gaussian_rows")}
