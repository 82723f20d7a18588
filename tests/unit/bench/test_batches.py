import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fairseq_fixed.bench.batches import Batch, fixed_lengths, make_tokens
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.peers.base import PAD, padding_mask
from fairseq_fixed.layout import SequenceLayout


@given(st.integers(2, 300), st.integers(1, 5000), st.floats(0.01, 0.6))
def test_lengths_have_the_padding_that_was_asked_for(n, tokens, padding):
    batch = max(1, tokens // n)
    assume(batch == 1 or (1 - padding) * batch * n - n >= batch)
    lengths = fixed_lengths(n, tokens, padding)
    assert len(lengths) == batch
    assert max(lengths) == n
    assert min(lengths) >= 1
    if batch == 1:
        assert lengths == [n]
    else:
        share = 1 - sum(lengths) / (batch * n)
        # whole tokens: half a token a sentence, and one where nothing would be padded
        assert abs(share - padding) <= 0.5 / n + 1 / (batch * n)
        assert share > 0


def test_no_padding_asked_none_made():
    assert fixed_lengths(7, 30, 0.0) == [7] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 10, 0.1), "length 0"),
        ((-3, 10, 0.1), "length -3"),
        ((5, 0, 0.1), "0 tokens"),
        ((5, 10, 1.0), "padding 1"),
        ((5, 10, -0.1), "padding -0.1"),
        ((8, 32, 0.9), "4 sentences, the longest of 8 tokens, have at most 0.656"),
    ],
)
def test_what_cannot_be_made_is_named(arguments, message):
    with pytest.raises(BenchError, match=message):
        fixed_lengths(*arguments)


@pytest.mark.parametrize("side", ["left", "right"])
def test_tokens_are_sentences_as_the_layout_reads_them(side):
    lengths = [5, 3, 1]
    tokens = make_tokens(lengths, side, vocabulary=20, seed=3)
    layout = SequenceLayout.from_tokens(tokens, PAD)
    assert layout.length.tolist() == lengths
    assert tokens[torch.arange(3), layout.last].tolist() == [2, 2, 2]
    assert tokens.eq(PAD).sum() == 15 - sum(lengths)
    words = tokens[tokens.ne(PAD) & tokens.ne(2)]
    assert words.min() >= 4
    assert words.max() < 20


def test_a_mask_is_given_only_where_something_is_padded():
    assert padding_mask(make_tokens([4, 4], "left", 20, 0)) is None
    assert padding_mask(make_tokens([4, 3], "left", 20, 0)).sum() == 1


def test_both_layouts_of_a_batch_hold_the_same_numbers():
    batch = Batch(make_tokens([4, 2], "right", 20, 0), 3, 8, torch.float32, 1)
    for second, first in zip(batch.inputs(False), batch.inputs(True), strict=True):
        assert first.shape == (2, 4, 8)
        assert torch.equal(second.transpose(0, 1), first)
        assert first.is_leaf
        assert first.requires_grad
    assert len(batch.inputs(True)) == 3
    assert torch.equal(batch.gradient(False).transpose(0, 1), batch.gradient(True))
    assert batch.gradient(True)[1, 2:].eq(0).all()
    assert batch.gradient(True)[1, :2].ne(0).all()
    assert batch.shape == (2, 4)
