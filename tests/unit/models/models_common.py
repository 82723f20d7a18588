"""Small models of ours and of fairseq's, built as their command lines would build them."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.options import get_parser  # noqa: F401  registers fairseq's components

import fairseq_fixed.models  # noqa: F401  registers ours

PAD = 1


def dictionary(size: int = 30) -> Dictionary:
    d = Dictionary()
    for index in range(size):
        d.add_symbol(f"w{index}", n=1000 - index)
    return d


def task(size: int = 30) -> SimpleNamespace:
    d = dictionary(size)
    return SimpleNamespace(source_dictionary=d, target_dictionary=d)


def options(*flags: str, arch: str = "fixed_transformer_tiny") -> argparse.Namespace:
    """What fairseq's parser makes of these flags for this architecture."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    args = parser.parse_args(list(flags))
    args.arch = arch
    ARCH_CONFIG_REGISTRY[arch](args)
    return args


def build(*flags: str, arch: str = "fixed_transformer_tiny", a_task=None):
    args = options(*flags, arch=arch)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, a_task or task())


def tokens(lengths: list[int], side: str = "left", n: int | None = None) -> torch.Tensor:
    """Random sentences that end in </s>, padded on a side."""
    n = n or max(lengths)
    out = torch.full((len(lengths), n), PAD)
    for row, length in enumerate(lengths):
        sentence = torch.cat([torch.randint(4, 30, (length - 1,)), torch.tensor([2])])
        out[row, n - length if side == "left" else 0 :][:length] = sentence
    return out


def encode(model, src: torch.Tensor, **kwargs) -> torch.Tensor:
    return model.encoder(src, src.ne(PAD).sum(1), **kwargs)["encoder_out"][0]
