"""Where the sentences of a batch lie, for heads that look back alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["CausalLayout", "Step"]

T = TypeVar("T")


class CausalLayout:
    """A batch of whole sentences.

    Padding behind a sentence changes nothing for heads that look back, so that the usual batch of
    a decoder needs no mask at all: `padding_mask` stays None. Positions count from a sentence's
    first real token. A padding symbol in the middle keeps its position and is not attended to.

    Args:
        padding_mask: (batch, n) bool, True at padding; None: nowhere before a real token.
        shape: (batch, n), needed where `padding_mask` is None.
        device: where tensors go; needed where `padding_mask` is None.

    Raises:
        ValueError: neither a mask nor a shape.
    """

    def __init__(
        self,
        padding_mask: Tensor | None,
        *,
        shape: tuple[int, int] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if padding_mask is not None:
            shape, device = (padding_mask.shape[0], padding_mask.shape[1]), padding_mask.device
        if shape is None:
            raise ValueError("CausalLayout: give a padding mask or the batch's shape")
        self.batch, self.n = shape
        self.device = torch.device(device or "cpu")
        self.padding_mask = padding_mask
        self._memo: dict[Hashable, object] = {}

    @classmethod
    def from_tokens(cls, tokens: Tensor, pad: int) -> CausalLayout:
        """Read the layout off token indices (batch, n) and the padding index."""
        mask = tokens.eq(pad)
        early = (mask[:, :-1] & ~mask[:, 1:]).any()
        shape = (tokens.shape[0], tokens.shape[1])
        return cls(mask if bool(early) else None, shape=shape, device=tokens.device)

    def memo(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned when `key`, all that decides the value, was first asked."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]  # type: ignore[return-value]

    @cached_property
    def hidden(self) -> Tensor | None:
        """(n, batch, 1) bool: padding; None where it changes nothing."""
        return None if self.padding_mask is None else self.padding_mask.t()[:, :, None]

    @cached_property
    def start(self) -> Tensor:
        """(batch,) int64: index of each sentence's first token."""
        if self.padding_mask is None:
            return torch.zeros(self.batch, dtype=torch.long, device=self.device)
        return first_real(self.padding_mask)

    @cached_property
    def position(self) -> Tensor:
        """(n, batch) int64: i of every token, counted from its sentence's start; < 0 before."""
        return torch.arange(self.n, device=self.device)[:, None] - self.start

    @cached_property
    def visible(self) -> Tensor:
        """(batch, n, n) bool: query i may attend to key j: j ≤ i, and j is no padding."""
        ones = torch.ones(self.n, self.n, dtype=torch.bool, device=self.device).tril()
        if self.padding_mask is None:
            return ones.expand(self.batch, -1, -1)
        begun = self.position.t()[:, :, None] >= 0
        return ones & begun & ~self.padding_mask[:, None, :]

    def align(self, x: Tensor) -> Tensor:
        """Move sentences (n, batch, channels) so that all start at 0; what follows is undefined."""
        if self.padding_mask is None:
            return x
        index = torch.arange(self.n, device=self.device)[:, None] + self.start
        return x.gather(0, index.clamp(max=self.n - 1)[:, :, None].expand_as(x))

    def restore(self, x: Tensor) -> Tensor:
        """Undo :meth:`align`; what lies before a sentence is undefined."""
        if self.padding_mask is None:
            return x
        return x.gather(0, self.position.clamp(min=0)[:, :, None].expand_as(x))


class Step:
    """One more token of every sentence, while translating.

    Args:
        index: of the token in the batch, from 0.
        padding_mask: (batch, index + 1) bool, True at padding among the tokens so far; None where
            there is none, as in a beam search.
    """

    def __init__(self, index: int, padding_mask: Tensor | None = None) -> None:
        self.index = index
        self.padding_mask = padding_mask

    @classmethod
    def from_tokens(cls, tokens: Tensor, pad: int) -> Step:
        """Read it off all tokens so far, (batch, index + 1)."""
        mask = tokens.eq(pad)
        return cls(tokens.shape[1] - 1, mask if bool(mask.any()) else None)

    @cached_property
    def hidden(self) -> Tensor | None:
        """(batch, 1) bool: sentences whose token is padding now."""
        return None if self.padding_mask is None else self.padding_mask[:, -1:]

    @cached_property
    def position(self) -> Tensor | None:
        """(batch,) int64: the token's position in its sentence, -1 before it; None: `index`."""
        if self.padding_mask is None:
            return None
        return (self.index - first_real(self.padding_mask)).clamp(min=-1)


def first_real(padding_mask: Tensor) -> Tensor:
    """Return the index of each row's first real token, (batch,); n where there is none."""
    first = (~padding_mask).to(torch.uint8).argmax(dim=1)  # the first of equal maxima
    return first.masked_fill(padding_mask.all(dim=1), padding_mask.shape[1])
