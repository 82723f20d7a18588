"""What heads need to know of the vocabulary: where words begin, and how rare each token is.

Plain torch: symbols and counts come in as lists, so any toolkit's dictionary will do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["RANKS", "WORD_BOUNDARIES", "Vocabulary", "VocabularyError"]

WORD_BOUNDARIES = ("auto", "sentencepiece", "subword-nmt", "tokens")
RANKS = "rarity_version"
SENTENCEPIECE_MARK = "▁"
SUBWORD_NMT_MARK = "@@"


class VocabularyError(ValueError):
    """A vocabulary that does not show what a head needs; the message says what to do."""


class Vocabulary(nn.Module):
    """Tables over the vocabulary, kept with a model as buffers.

    Args:
        symbols: all tokens, by index.
        counts: how often each was seen in training; needed for `rarity` alone.
        special: indices that are no words: padding, `<s>`, `</s>`. Each is a word of its own, and
            is never chosen as a rare token.
        unk: index of `<unk>`, which counts as the rarest token.
        boundaries: how subwords show where words begin: `sentencepiece` (`▁` before a word's
            first piece), `subword-nmt` (`@@` behind all pieces but a word's last), `tokens`
            (every token is a word), or `auto`: whichever of the two marks the symbols show.
        words: whether to make the tables of word boundaries.
        rarity: whether to make the table of ranks. It is saved with the model: a loaded model
            ranks tokens as it was trained to, whatever counts its dictionary has by then.

    Raises:
        VocabularyError: `auto`, and the symbols show neither mark; or no counts for `rarity`.
    """

    begins: Tensor
    ends: Tensor

    def __init__(
        self,
        symbols: Sequence[str],
        counts: Sequence[int] | None = None,
        *,
        special: Sequence[int],
        unk: int,
        boundaries: str = "auto",
        words: bool = False,
        rarity: bool = False,
    ) -> None:
        super().__init__()
        self.words = words
        if words:
            begins, ends = _boundaries(symbols, special, boundaries)
            self.register_buffer("begins", torch.tensor(begins), persistent=False)
            self.register_buffer("ends", torch.tensor(ends), persistent=False)
        # fairseq's moving average of weights (--store-ema) decays all buffers, those of whole
        # numbers too, but not what has "version" in its name
        self.register_buffer(RANKS, _ranks(counts, special, unk) if rarity else None)

    @property
    def rarity(self) -> Tensor | None:
        """Each symbol's rank, (vocabulary) int64; None: made without."""
        return getattr(self, RANKS)

    def word_index(self, tokens: Tensor, inside: Tensor) -> Tensor:
        """Return the word each token belongs to, counted from 0 at its sentence's start.

        Args:
            tokens: (batch, n) indices.
            inside: (batch, n) bool, True inside the sentence.

        Returns:
            (batch, n) int64; 0 outside the sentence.

        Raises:
            VocabularyError: this vocabulary was made without word boundaries.
        """
        if not self.words:
            raise VocabularyError("word-based heads need a vocabulary with word boundaries")
        first = self.begins[tokens]
        # a sentence's first token begins a word whether it is marked or not
        first[:, 0] = True
        first[:, 1:] |= self.ends[tokens[:, :-1]] | ~inside[:, :-1]
        return ((first & inside).cumsum(1) - 1).clamp(min=0)

    def ranks(self, tokens: Tensor) -> Tensor:
        """Return each token's rank, (batch, n) int64: 0 is `<unk>`, then by falling rarity.

        Tokens of equal counts have equal ranks; special tokens have the rank -1.

        Raises:
            VocabularyError: this vocabulary was made without ranks.
        """
        if self.rarity is None:
            raise VocabularyError("heads that look for rare tokens need a vocabulary with counts")
        return self.rarity[tokens]


def _boundaries(
    symbols: Sequence[str], special: Sequence[int], boundaries: str
) -> tuple[list[bool], list[bool]]:
    """Return whether each symbol begins a word, and whether the one behind it does."""
    if boundaries not in WORD_BOUNDARIES:
        raise VocabularyError(
            f"word boundaries are {boundaries!r}; they must be one of {', '.join(WORD_BOUNDARIES)}"
        )
    if boundaries == "auto":
        pieces = sum(symbol.startswith(SENTENCEPIECE_MARK) for symbol in symbols)
        joined = sum(symbol.endswith(SUBWORD_NMT_MARK) for symbol in symbols)
        if not pieces and not joined:
            raise VocabularyError(
                f"word-based heads: no symbol of the dictionary begins with "
                f"{SENTENCEPIECE_MARK!r} (sentencepiece) or ends in {SUBWORD_NMT_MARK!r} "
                "(subword-nmt), so it does not show where words begin; if every token is a word, "
                "say --word-boundaries tokens"
            )
        boundaries = "sentencepiece" if pieces >= joined else "subword-nmt"
    alone = set(special)
    if boundaries == "sentencepiece":
        begins = [symbol.startswith(SENTENCEPIECE_MARK) for symbol in symbols]
        ends = [False] * len(symbols)
    elif boundaries == "subword-nmt":
        begins = [False] * len(symbols)
        ends = [not symbol.endswith(SUBWORD_NMT_MARK) for symbol in symbols]
    else:
        begins, ends = [True] * len(symbols), [True] * len(symbols)
    for index in alone:
        begins[index] = ends[index] = True
    return begins, ends


def _ranks(counts: Sequence[int] | None, special: Sequence[int], unk: int) -> Tensor:
    if counts is None:
        raise VocabularyError("heads that look for rare tokens need the dictionary's counts")
    known = [i for i in range(len(counts)) if i not in special and i != unk]
    levels = {count: rank for rank, count in enumerate(sorted({counts[i] for i in known}), 1)}
    ranks = torch.full((len(counts),), -1, dtype=torch.long)
    for i in known:
        ranks[i] = levels[counts[i]]
    ranks[unk] = 0
    return ranks
