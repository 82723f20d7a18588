"""Word-based patterns, written out as loops over one sentence."""

import pytest
import torch

from fairseq_fixed.attention.mixed import build_head
from fairseq_fixed.heads import KINDS, HeadSpec
from fairseq_fixed.layout import SequenceLayout
from tests.conftest import EOS, PAD, make_tokens, make_vocabulary
from tests.unit.attention.test_paper_patterns import table

WORD_BASED = [kind for kind, info in KINDS.items() if info.words]


def by_hand(kind: str, words: list[int]) -> torch.Tensor:
    """A[a, b] / size of b, for the word of every token."""
    n, count = len(words), max(words) + 1
    word_level = table(kind, count)
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            matrix[i, j] = word_level[words[i], words[j]] / words.count(words[j])
    return matrix


@pytest.mark.parametrize("kind", WORD_BASED)
@pytest.mark.parametrize("side", ["left", "right"])
def test_definition(kind, side):
    head = build_head(HeadSpec(kind, words=True), 1, 1, {})
    tokens = make_tokens([12, 7, 1], side)
    layout = SequenceLayout.from_tokens(tokens, PAD, make_vocabulary())
    weights = head.weights(layout, dtype=torch.float64)
    for b in range(3):
        real = layout.inside[:, b]
        words = layout.words.index[real, b].tolist()
        expected = by_hand(kind, words)
        torch.testing.assert_close(weights[b, 0][real][:, real], expected)


@pytest.mark.parametrize("kind", WORD_BASED)
def test_words_of_one_token_are_the_token_based_pattern(kind):
    tokens = torch.tensor([[5, 7, 9, 11, 13, EOS]])  # every one begins a word
    layout = SequenceLayout.from_tokens(tokens, PAD, make_vocabulary())
    values = torch.randn(6, 1, 4)
    by_words = build_head(HeadSpec(kind, words=True), 1, 4, {}).attend(values, layout)
    by_tokens = build_head(HeadSpec(kind), 1, 4, {}).attend(values, layout)
    torch.testing.assert_close(by_words, by_tokens)
