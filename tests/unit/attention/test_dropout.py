import math

import pytest
import torch
import torch.nn.functional as F

from fairseq_fixed.attention import dropout
from fairseq_fixed.attention.dropout import _Dropper, dropout_attention

SHAPE = (2, 3, 7, 4)


def draw(dtype=torch.float64, shape=SHAPE):
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in "qkv"]


def make_mask(kind):
    if kind == "none":
        return None
    mask = torch.randn((2, 1, 1, 7) if kind == "keys" else (1, 3, 7, 7), dtype=torch.float64)
    mask[..., 2] = -torch.inf
    return mask


@pytest.mark.parametrize("mask", ["none", "keys", "full"])
@pytest.mark.parametrize("chunk", [1, 50, 150, 1 << 20])
def test_equals_attention_with_the_weights_that_were_kept(mask, chunk, monkeypatch):
    monkeypatch.setattr(dropout, "CHUNK", chunk)
    monkeypatch.setattr(dropout, "ROWS", 2)
    q, k, v = draw()
    mask = make_mask(mask)
    torch.manual_seed(5)
    out = dropout_attention(q, k, v, mask, 0.3)
    # the same numbers, drawn once more, chunk by chunk
    torch.manual_seed(5)
    drop = _Dropper(0.3, int(torch.randint(1 << 62, ())))
    kept = torch.empty(2, 3, 7, 7)
    for sentences, rows in dropout._chunks(2, 3, 7):
        kept[sentences, :, rows] = drop.kept(kept[sentences, :, rows])
    scores = q @ k.transpose(-1, -2) / math.sqrt(4)
    weights = (scores if mask is None else scores + mask).softmax(-1)
    expected = (weights * kept * drop.scale) @ v
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, (q, k, v), grad), torch.autograd.grad(expected, (q, k, v), grad)
    )


def test_gradients():
    def attend(q, k, v):
        torch.manual_seed(3)
        return dropout_attention(q, k, v, make_full(), 0.5)

    def make_full():
        return torch.linspace(-1, 1, 49, dtype=torch.float64).view(1, 1, 7, 7)

    assert torch.autograd.gradcheck(attend, draw())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_and_mean_of_what_is_dropped(p):
    drop = _Dropper(p, 1)
    size = 1 << 20
    dropped = 1 - drop.kept(torch.empty(size))
    # five standard deviations of a binomial share
    assert abs(dropped.double().mean() - p) < 5 * math.sqrt(p * (1 - p) / size) + 1 / 65536
    assert drop.scale == pytest.approx(1 / (1 - p), rel=2e-4)
    # the four weights that share a word are independent
    four = dropped.view(-1, 4).double()
    correlation = torch.corrcoef(four.t()) - torch.eye(4)
    assert correlation.abs().max() < 5 / math.sqrt(size / 4)


def test_mean_over_draws_is_attention_without_dropout():
    q, k, v = (x.detach() for x in draw())
    mean = torch.stack([dropout_attention(q, k, v, None, 0.2) for _ in range(4000)])
    error = (mean.mean(0) - F.scaled_dot_product_attention(q, k, v)) / (mean.std(0) / 4000**0.5)
    assert error.abs().max() < 5.5  # standard errors, over 168 numbers


def test_no_dropout_is_attention():
    q, k, v = draw()
    out = dropout_attention(q, k, v, None, 0.0)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v))


def test_draws_differ_and_follow_torchs_seed():
    q, k, v = draw()
    torch.manual_seed(1)
    first, second = (dropout_attention(q, k, v, None, 0.5) for _ in range(2))
    torch.manual_seed(1)
    again = dropout_attention(q, k, v, None, 0.5)
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
