"""What a batch looks like: where each sentence lies, computed once and shared by all layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor

from fairseq_fixed.vocabulary import Vocabulary, VocabularyError

__all__ = ["SequenceLayout", "Words"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of a batch.

    Attributes:
        index: (n, batch) int64, the word that each token belongs to, from 0.
        size: (words, batch, 1) float32, tokens a word; 1 where a sentence has fewer words.
        layout: of the words, padded on the right.
    """

    index: Tensor
    size: Tensor
    layout: SequenceLayout


class SequenceLayout:
    """Where the sentences of one batch lie among their padding.

    A sentence is the span from its first to its last real token, `</s>` included; positions i and
    j and the length n of `PAPERS.md` count inside this span, whichever side is padded. (A padding
    symbol that a user wrote into the middle of a sentence keeps its position, and no head attends
    to it.)

    Everything derived (positions, masks, weights of a pattern) is computed at first use and kept
    in :meth:`memo`, so that the layers of an encoder share it.

    Args:
        padding_mask: (batch, n) bool, True at padding; or None where there is none.
        shape: (batch, n), needed where `padding_mask` is None.
        device: where tensors go; needed where `padding_mask` is None.
        tokens: (batch, n) token indices, needed for `words` and `rarest`.
        vocabulary: what is known of the tokens, needed likewise.

    Raises:
        ValueError: neither a mask nor a shape; a mask that is not 2-d.
    """

    def __init__(
        self,
        padding_mask: Tensor | None,
        *,
        shape: tuple[int, int] | None = None,
        device: torch.device | str | None = None,
        tokens: Tensor | None = None,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        if padding_mask is None:
            if shape is None:
                raise ValueError("SequenceLayout: give a padding mask or the batch's shape")
            self.device = torch.device(device or "cpu")
        else:
            if padding_mask.dim() != 2:
                raise ValueError(
                    f"SequenceLayout: padding mask is {tuple(padding_mask.shape)}, not (batch, n)"
                )
            shape = (padding_mask.shape[0], padding_mask.shape[1])
            self.device = padding_mask.device
            padding_mask = padding_mask.to(torch.bool)
        self.batch, self.n = shape
        self.padding_mask = padding_mask
        self.tokens = tokens
        self.vocabulary = vocabulary
        self._memo: dict[Hashable, object] = {}

    @classmethod
    def from_tokens(
        cls, tokens: Tensor, pad: int, vocabulary: Vocabulary | None = None
    ) -> SequenceLayout:
        """Read the layout off token indices (batch, n) and the padding index."""
        mask = tokens.eq(pad)
        return cls(
            mask if bool(mask.any()) else None,
            shape=(tokens.shape[0], tokens.shape[1]),
            device=tokens.device,
            tokens=tokens,
            vocabulary=vocabulary,
        )

    def memo(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned when `key` was first asked for.

        The key must hold everything that decides the value apart from this layout: the pattern,
        its arguments, the dtype.
        """
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]  # type: ignore[return-value]

    @property
    def pattern(self) -> SequenceLayout:
        """What patterns of positions depend on: without padding, one sentence stands for all."""
        if self.padding_mask is not None or self.batch == 1:
            return self
        return self.memo(
            "pattern", lambda: SequenceLayout(None, shape=(1, self.n), device=self.device)
        )

    # Positions. All are (n, batch) or (batch,): the encoder's tensors are (n, batch, channels).

    @property
    def start(self) -> Tensor:
        """(batch,) int64: index of each sentence's first token."""
        return self.memo("start", self._start)

    def _start(self) -> Tensor:
        if self.padding_mask is None:
            return torch.zeros(self.batch, dtype=torch.long, device=self.device)
        real = (~self.padding_mask).to(torch.uint8)
        return real.argmax(dim=1)  # the first of equal maxima; 0 where all is padding

    @property
    def length(self) -> Tensor:
        """(batch,) int64: number of tokens n of each sentence; 0 where all is padding."""
        return self.memo("length", self._length)

    def _length(self) -> Tensor:
        if self.padding_mask is None:
            return torch.full((self.batch,), self.n, dtype=torch.long, device=self.device)
        real = (~self.padding_mask).to(torch.uint8)
        last = self.n - 1 - real.flip(1).argmax(dim=1)
        return torch.where(
            (~self.padding_mask).any(dim=1), last - self.start + 1, torch.zeros_like(last)
        )

    @property
    def position(self) -> Tensor:
        """(n, batch) int64: i of every token, counted from its sentence's start (< 0 before)."""
        return self.memo(
            "position",
            lambda: torch.arange(self.n, device=self.device)[:, None] - self.start[None, :],
        )

    @property
    def sentences(self) -> Tensor:
        """(batch,) int64: 0, 1, …: with `start` or `last`, the index of a sentence's token."""
        return self.memo("sentences", lambda: torch.arange(self.batch, device=self.device))

    @property
    def inside(self) -> Tensor:
        """(n, batch) bool: whether the position belongs to its sentence's span."""
        return self.memo(
            "inside", lambda: (self.position >= 0) & (self.position < self.length[None, :])
        )

    @property
    def hidden(self) -> Tensor | None:
        """(n, batch, 1) bool: positions no head may attend to; None where there is no padding."""
        if self.padding_mask is None:
            return None
        mask = self.padding_mask
        return self.memo("hidden", lambda: mask.t().contiguous()[:, :, None])

    @property
    def attendable(self) -> Tensor:
        """(batch, n) bool: keys that may be attended to: inside the sentence, and no padding."""
        mask = self.padding_mask
        inside = self.inside.t()
        return self.memo("attendable", lambda: inside if mask is None else inside & ~mask)

    @property
    def visible(self) -> Tensor:
        """(batch, n, n) bool: query i and key j are in one sentence and j is no padding."""
        return self.memo("visible", self._visible)

    def _visible(self) -> Tensor:
        return self.inside.t()[:, :, None] & self.attendable[:, None, :]

    @property
    def key_mask(self) -> Tensor | None:
        """(batch, 1, 1, n) bool, True where a key may be attended to; None without padding.

        A row that is all padding keeps all its keys, so that a softmax over it stays finite.
        """
        if self.padding_mask is None:
            return None
        mask = self.padding_mask
        return self.memo(
            "key_mask", lambda: (~mask | mask.all(dim=1, keepdim=True))[:, None, None, :]
        )

    def key_bias(self, dtype: torch.dtype) -> Tensor | None:
        """Return `key_mask` as what is added to scores: 0 or -inf; (batch, 1, 1, n)."""
        mask = self.key_mask
        if mask is None:
            return None
        zero = torch.zeros((), dtype=dtype, device=self.device)
        return self.memo(("key bias", dtype), lambda: zero.masked_fill(~mask, -torch.inf))

    @property
    def last(self) -> Tensor:
        """(batch,) int64: index of each sentence's last token."""
        return self.memo("last", lambda: (self.start + self.length - 1).clamp(min=0))

    # What depends on the tokens themselves.

    def _known_tokens(self) -> tuple[Tensor, Vocabulary]:
        if self.tokens is None or self.vocabulary is None:
            raise VocabularyError(
                "word-based heads and heads that look for rare tokens need a layout made from "
                "tokens with their vocabulary: SequenceLayout.from_tokens(tokens, pad, vocabulary)"
            )
        return self.tokens, self.vocabulary

    @property
    def words(self) -> Words:
        """The words that the tokens make up; `</s>` is a word of its own.

        Raises:
            VocabularyError: the layout was made without tokens or word boundaries.
        """
        return self.memo("words", self._words)

    def _words(self) -> Words:
        tokens, vocabulary = self._known_tokens()
        inside = self.inside.t()
        index = vocabulary.word_index(tokens, inside)
        count = torch.where(inside.any(1), index.amax(1) + 1, 0)  # (batch,)
        most = max(int(count.max()), 1)
        size = torch.zeros(self.batch, most, device=self.device)
        size.scatter_add_(1, index, inside.float())
        mask = torch.arange(most, device=self.device)[None, :] >= count[:, None]
        layout = SequenceLayout(
            mask if bool(mask.any()) else None, shape=(self.batch, most), device=self.device
        )
        return Words(index.t(), size.clamp(min=1).t()[:, :, None], layout)

    def rarest(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the positions of each sentence's `number` rarest tokens.

        `</s>` and padding are never chosen, `<unk>` is the rarest, ties go to the left.

        Returns:
            Index into the batch's n, (batch, K) int64, rarest first, and (batch, K) bool, False
            where a sentence has fewer tokens to choose from; K is `number`, or n where that is
            less.

        Raises:
            VocabularyError: the layout was made without tokens or counts.
        """
        number = min(number, self.n)
        return self.memo(("rarest", number), lambda: self._rarest(number))

    def _rarest(self, number: int) -> tuple[Tensor, Tensor]:
        tokens, vocabulary = self._known_tokens()
        ranks = vocabulary.ranks(tokens)
        eligible = (ranks >= 0) & self.attendable
        never = torch.iinfo(torch.long).max
        # unique keys: by rank, then from the left
        keys = ranks * self.n + torch.arange(self.n, device=self.device)
        keys = keys.masked_fill(~eligible, never)
        chosen = keys.topk(number, dim=1, largest=False)
        valid = chosen.values != never
        return chosen.indices.masked_fill(~valid, 0), valid
