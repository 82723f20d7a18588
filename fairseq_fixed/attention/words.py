"""Word-based heads: a fixed pattern over words in place of tokens (arXiv 2002.10260)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from fairseq_fixed.attention.base import FixedHead, Head, compute_dtype
from fairseq_fixed.layout import SequenceLayout

__all__ = ["WordBased"]


class WordBased(Head):
    """A fixed head over words: the subwords of a word act as one unit.

    A token in word a puts the word-level weight A[a, b], spread evenly, over the tokens of word
    b; the even spread is ours, the paper does not say. So the head is the token-based pattern
    applied to the words' means: O(n), whatever the pattern.

    Args:
        head: the pattern, over words.
    """

    needs = frozenset({"words"})

    def __init__(self, head: FixedHead) -> None:
        super().__init__(head.num_heads, head.head_dim)
        self.head = head

    def weights(
        self,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return A[word of i, word of j] / tokens of j's word, (batch, heads, n, n)."""
        words = layout.words
        matrix = self.head.weights(words.layout, dtype=torch.float64)
        most = words.layout.n
        index = words.index.t()  # (batch, n)
        heads = matrix.shape[1]
        rows = matrix.gather(2, index[:, None, :, None].expand(-1, heads, -1, most))
        spread = rows / words.size.permute(1, 2, 0)[:, None].double()
        full = spread.gather(3, index[:, None, None, :].expand(-1, heads, layout.n, -1))
        return (full * layout.visible[:, None]).to(dtype)

    def attend(
        self,
        values: Tensor,
        layout: SequenceLayout,
        queries: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Tensor:
        """Average words, attend over them, repeat the result for each of a word's tokens."""
        words = layout.words
        n, batch, channels = values.shape
        most = words.layout.n
        flat = layout.memo("flat words", lambda: _flat(words.index, batch))
        dtype = compute_dtype(values)
        sums = values.new_zeros(most * batch, channels, dtype=dtype)
        sums = sums.index_add(0, flat, values.reshape(n * batch, channels).to(dtype))
        means = sums.view(most, batch, channels) / words.size.to(dtype)
        out = self.head.attend(means, words.layout)
        return out.reshape(most * batch, channels)[flat].view(n, batch, channels).to(values.dtype)


def _flat(index: Tensor, batch: int) -> Tensor:
    """Return where each token's word lies in (words * batch), for (n * batch) tokens."""
    return cast(Tensor, (index * batch + torch.arange(batch, device=index.device)).reshape(-1))
