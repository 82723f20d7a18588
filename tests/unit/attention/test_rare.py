"""Σ₃ of PAPERS.md section 3, written out as a loop over one sentence."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_fixed.attention.rare import Rare
from fairseq_fixed.layout import SequenceLayout
from fairseq_fixed.vocabulary import VocabularyError
from tests.conftest import EOS, PAD, UNK, make_tokens, make_vocabulary

# the vocabulary of conftest: counts fall with the index, in pairs (38 and 39 are rarest but <unk>)
COMMON, RARE, RARER = 5, 35, 39


def attended(head: Rare, sentence: list[int]) -> list[int]:
    """The key of every row, one row a token; fails where a row is not a single 1."""
    layout = SequenceLayout.from_tokens(torch.tensor([sentence]), PAD, make_vocabulary())
    weights = head.weights(layout)[0, 0]
    assert ((weights == 0) | (weights == 1)).all()
    assert (weights.sum(-1) == 1).all()
    return weights.argmax(-1).tolist()


def by_hand(sentence: list[int], number: int, width: int) -> list[int]:
    counts = {UNK: -1, **{token: 1 + (40 - token) // 2 for token in range(4, 40)}}
    candidates = [i for i, token in enumerate(sentence) if token in counts]
    rare = sorted(candidates, key=lambda i: (counts[sentence[i]], i))[:number]
    keys = []
    for i in range(len(sentence)):
        near = [t for t in rare if abs(i - t) <= width]
        keys.append(min(near, key=lambda t: (abs(i - t), t)) if near else i)
    return keys


def test_neighbours_attend_to_the_rare_token():
    sentence = [COMMON, COMMON, COMMON, RARER, COMMON, COMMON, EOS]
    assert attended(Rare(1, 1, 1, 1), sentence) == [0, 1, 3, 3, 3, 5, 6]
    assert attended(Rare(1, 1, 1, 2), sentence) == [0, 3, 3, 3, 3, 3, 6]
    assert attended(Rare(1, 1, 1, 0), sentence) == list(range(7))


def test_the_nearer_of_two_wins_and_ties_go_left():
    sentence = [COMMON, RARE, COMMON, COMMON, COMMON, RARER, COMMON, EOS]
    #           0       1     2       3       4       5      6       7
    # 3 is two away from both, and the rarer one is on the right: the left one still wins
    assert attended(Rare(1, 1, 2, 2), sentence) == [1, 1, 1, 1, 5, 5, 5, 5]
    assert attended(Rare(1, 1, 2, 9), sentence) == [1, 1, 1, 1, 5, 5, 5, 5]
    assert attended(Rare(1, 1, 1, 9), sentence) == [5] * 8


def test_end_of_sentence_is_never_chosen_and_unknown_is_rarest():
    assert attended(Rare(1, 1, 5, 0), [EOS]) == [0]
    assert attended(Rare(1, 1, 5, 1), [EOS]) == [0]
    assert attended(Rare(1, 1, 1, 1), [RARER, COMMON, COMMON, UNK, EOS]) == [0, 1, 3, 3, 3]
    # of equally rare tokens the left one is chosen
    assert attended(Rare(1, 1, 1, 1), [COMMON, RARER, COMMON, RARER, EOS]) == [1, 1, 1, 3, 4]


@given(
    st.lists(st.integers(3, 39), max_size=25),
    st.integers(1, 6),
    st.integers(0, 30),
    st.integers(0, 4),
    st.sampled_from(["left", "right"]),
)
def test_definition_and_operator_are_the_loop(words, number, width, padding, side):
    sentence = [*words, EOS]
    n = len(sentence)
    longer = make_tokens([n, n + padding], side)
    rows = slice(padding, None) if side == "left" else slice(0, n)
    longer[0, rows] = torch.tensor(sentence)
    layout = SequenceLayout.from_tokens(longer, PAD, make_vocabulary())
    head = Rare(2, 1, number, width)
    expected = by_hand(sentence, number, width)
    weights = head.weights(layout)[0, :, rows, rows]
    assert (weights.argmax(-1) == torch.tensor(expected)).all()
    values = torch.randn(n + padding, 2, 2)
    assert torch.equal(head.attend(values, layout)[rows, 0], values[rows, 0][expected])


def test_a_rare_tokens_gradient_is_its_neighbours_sum():
    sentence = torch.tensor([[COMMON, COMMON, RARER, COMMON, EOS]])
    layout = SequenceLayout.from_tokens(sentence, PAD, make_vocabulary())
    values = torch.zeros(5, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    Rare(1, 1, 1, 1).attend(values, layout).sum().backward()
    assert values.grad.flatten().tolist() == [1, 0, 3, 0, 1]


def test_errors():
    with pytest.raises(ValueError, match="K = 0"):
        Rare(1, 1, 0, 1)
    with pytest.raises(ValueError, match="W = -1"):
        Rare(1, 1, 1, -1)
    bare = SequenceLayout(None, shape=(1, 3))
    with pytest.raises(VocabularyError, match="rare tokens"):
        Rare(1, 1, 1, 1).attend(torch.randn(3, 1, 1), bare)
