import pytest
import torch

from fairseq_fixed.layout import SequenceLayout
from fairseq_fixed.vocabulary import RANKS, Vocabulary, VocabularyError

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def vocabulary(symbols, counts=None, **kwargs) -> Vocabulary:
    return Vocabulary(SPECIAL + symbols, counts, special=(0, 1, 2), unk=3, **kwargs)


def words(v: Vocabulary, sentence: list[int], pads: int = 0) -> list[int]:
    tokens = torch.tensor([[1] * pads + sentence])
    return SequenceLayout.from_tokens(tokens, 1, v).words.index[pads:, 0].tolist()


def test_sentencepiece():
    v = vocabulary(["▁ab", "c", "▁", "▁d"], words=True)  # 4 5 6 7
    assert words(v, [4, 5, 5, 7, 2]) == [0, 0, 0, 1, 2]
    assert words(v, [5, 5, 4, 2], pads=3) == [
        0,
        0,
        1,
        2,
    ]  # the first one begins a word
    assert words(v, [5, 5, 4, 2]) == [0, 0, 1, 2]
    assert words(v, [6, 3, 5, 7, 2]) == [0, 0, 0, 1, 2]  # a bare mark, an unknown character
    assert words(v, [2]) == [0]


def test_subword_nmt():
    v = vocabulary(["ab@@", "c", "d@@", "e"], words=True)
    assert words(v, [4, 5, 7, 6, 6, 7, 2]) == [0, 0, 1, 2, 2, 2, 3]
    assert words(v, [4, 2], pads=1) == [0, 1]  # </s> is a word of its own, even behind a @@
    assert words(v, [3, 5, 2]) == [0, 1, 2]


def test_every_token_a_word():
    v = vocabulary(["a", "b"], words=True, boundaries="tokens")
    assert words(v, [4, 5, 5, 2]) == [0, 1, 2, 3]


def test_an_option_overrides():
    symbols = ["▁a@@", "b"]
    assert words(vocabulary(symbols, words=True, boundaries="subword-nmt"), [4, 5, 2]) == [0, 0, 1]
    assert words(vocabulary(symbols, words=True, boundaries="sentencepiece"), [4, 5, 4]) == [
        0,
        0,
        1,
    ]


def test_a_dictionary_that_shows_no_words_is_an_error():
    with pytest.raises(VocabularyError, match=r"▁.*@@.*--word-boundaries tokens"):
        vocabulary(["a", "b"], words=True)
    with pytest.raises(VocabularyError, match=r"spaces.*auto"):
        vocabulary(["▁a"], words=True, boundaries="spaces")


def test_word_sizes_and_layout():
    v = vocabulary(["▁ab", "c"], words=True)
    tokens = torch.tensor([[1, 1, 4, 2], [4, 5, 5, 2]])
    found = SequenceLayout.from_tokens(tokens, 1, v).words
    assert found.size[:, :, 0].t().tolist() == [[1, 1], [3, 1]]
    assert found.layout.length.tolist() == [2, 2]


def ranked(counts, sentence, number, pads=0):
    v = vocabulary([f"w{i}" for i in range(len(counts))], [9, 9, 9, 9, *counts], rarity=True)
    layout = SequenceLayout.from_tokens(torch.tensor([[1] * pads + sentence]), 1, v)
    index, valid = layout.rarest(number)
    return (index[0, valid[0]] - pads).tolist()


@pytest.mark.parametrize("pads", [0, 2])
def test_rarest(pads):
    counts = [100, 5, 5, 1]  # tokens 4 5 6 7
    assert ranked(counts, [4, 5, 7, 4, 2], 1, pads) == [2]
    assert ranked(counts, [4, 5, 7, 4, 2], 2, pads) == [2, 1]
    assert ranked(counts, [6, 5, 4, 2], 1, pads) == [0]  # equal counts: the left one
    assert ranked(counts, [5, 6, 4, 2], 1, pads) == [0]
    assert ranked(counts, [7, 3, 3, 2], 2, pads) == [1, 2]  # <unk> is the rarest
    assert ranked(counts, [4, 2], 3, pads) == [0]  # </s> is never chosen
    assert ranked(counts, [2], 2, pads) == []


def test_ranks_are_saved_and_boundaries_are_not():
    saved = vocabulary(["▁a", "▁b"], [1, 1, 1, 1, 7, 3], rarity=True, words=True).state_dict()
    assert list(saved) == [RANKS]
    other = vocabulary(["▁a", "▁b"], [1, 1, 1, 1, 1, 1], rarity=True, words=True)
    other.load_state_dict(saved)
    assert other.ranks(torch.tensor([[4, 5, 3, 2]])).tolist() == [[2, 1, 0, -1]]


def test_what_was_not_made_is_an_error():
    v = vocabulary(["▁a"])
    layout = SequenceLayout.from_tokens(torch.tensor([[4, 2]]), 1, v)
    with pytest.raises(VocabularyError, match="word"):
        _ = layout.words
    with pytest.raises(VocabularyError, match="counts"):
        layout.rarest(1)
    with pytest.raises(VocabularyError, match="from_tokens"):
        SequenceLayout(None, shape=(1, 2)).rarest(1)
    with pytest.raises(VocabularyError, match="counts"):
        vocabulary(["▁a"], rarity=True)
