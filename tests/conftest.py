"""Shared fixtures: batches of sentences of several lengths, padded on either side."""

from __future__ import annotations

import signal

import pytest
import torch

from fairseq_fixed.heads import KINDS, HeadSpec
from fairseq_fixed.layout import SequenceLayout
from fairseq_fixed.vocabulary import Vocabulary

# A background job of a shell script ignores SIGINT, one of nohup SIGHUP, and so would what tests
# start to send it signals: a run leaves alone what is ignored.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        handler = signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        signal.signal(_number, handler)


def make_mask(lengths: list[int], n: int, side: str) -> torch.Tensor:
    """Padding mask (batch, n), True at padding."""
    index = torch.arange(n)[None, :]
    lengths_ = torch.tensor(lengths)[:, None]
    return index >= lengths_ if side == "right" else index < n - lengths_


PAD, EOS, UNK = 1, 2, 3


def make_vocabulary(size: int = 40, **kwargs) -> Vocabulary:
    """Sentencepiece-like: every other token begins a word; counts fall with the index, in pairs."""
    symbols = ["<s>", "<pad>", "</s>", "<unk>"]
    symbols += [("▁" if index % 2 else "") + f"t{index}" for index in range(4, size)]
    counts = [1, 0, 1, 1] + [1 + (size - index) // 2 for index in range(4, size)]
    return Vocabulary(
        symbols, counts, special=(0, PAD, EOS), unk=UNK, words=True, rarity=True, **kwargs
    )


def make_tokens(lengths: list[int], side: str = "left", n: int | None = None) -> torch.Tensor:
    """Random sentences that end in </s>, (batch, n)."""
    n = n or max(lengths)
    tokens = torch.full((len(lengths), n), PAD)
    for row, length in enumerate(lengths):
        sentence = torch.cat([torch.randint(3, 40, (length - 1,)), torch.tensor([EOS])])
        tokens[row, n - length if side == "left" else 0 :][:length] = sentence
    return tokens


def make_layout(lengths: list[int], side: str = "left", n: int | None = None) -> SequenceLayout:
    """Layout of random sentences of these lengths; without a mask where nothing is padded."""
    return SequenceLayout.from_tokens(make_tokens(lengths, side, n), PAD, make_vocabulary())


def example_spec(kind: str) -> HeadSpec:
    """A head of this kind with arguments inside their ranges, for tests that walk all kinds."""
    args = []
    for argument in KINDS[kind].arguments:
        low = max(argument.minimum, -2) if argument.minimum is not None else 0
        args.append(argument.type(min(low + 1, argument.maximum or low + 1)))
    return HeadSpec(kind, tuple(args))


def every_spec() -> list[HeadSpec]:
    """One head of every kind of the grammar, and of every kind that can be word-based."""
    specs = [example_spec(kind) for kind in KINDS]
    return specs + [HeadSpec(s.kind, s.args, words=True) for s in specs if KINDS[s.kind].words]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def said(done) -> str:
    """What a typer command printed, on one line without the box around it."""
    return " ".join(done.output.replace("│", " ").split())
