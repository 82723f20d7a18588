import pytest
import torch

from fairseq_fixed.attention import MixedHeadAttention, few, mixed
from fairseq_fixed.heads import parse_mix
from fairseq_fixed.layout import SequenceLayout
from tests.conftest import make_layout

MIXES = ["7f+1l", "8f", "1l+previous+off+2xleft+2xband:1+last", "7fw+1l"]


@pytest.mark.parametrize("edge", ["zero", "self", "clamp"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lengths", [[1], [2, 1], [9, 9], [9, 4, 1], [32] * 8])
def test_both_ways_agree(lengths, side, edge, monkeypatch):
    layout = make_layout(lengths, side)
    x = torch.randn(layout.n, layout.batch, 16, dtype=torch.float64, requires_grad=True)
    for mix in MIXES[:3]:
        layer = MixedHeadAttention(16, parse_mix(mix), edge=edge).double()
        out = layer(x, layout)
        with monkeypatch.context() as patch:
            patch.setattr(mixed, "few_and_short", lambda x: False)
            expected = layer(x, layout)
        inside = layout.inside
        torch.testing.assert_close(out[inside], expected[inside])
        grad = torch.randn_like(out) * inside[:, :, None]
        given = [x, *layer.parameters()]
        torch.testing.assert_close(
            torch.autograd.grad(out, given, grad, allow_unused=True),
            torch.autograd.grad(expected, given, grad, allow_unused=True),
        )


def test_padding_inside_a_sentence(monkeypatch):
    mask = torch.tensor([[False, False, True, False, False], [True, False, False, False, False]])
    layout = SequenceLayout(mask)
    x = torch.randn(5, 2, 16, dtype=torch.float64)
    layer = MixedHeadAttention(16, parse_mix("8f")).double()
    out = layer(x, layout)
    monkeypatch.setattr(mixed, "few_and_short", lambda x: False)
    torch.testing.assert_close(out[~mask.t()], layer(x, layout)[~mask.t()])


def test_matrices_made_in_inference_mode_serve_training():
    few._whole.cache_clear()
    layer = MixedHeadAttention(16, parse_mix("8f"))
    layout = make_layout([6])
    with torch.inference_mode():
        layer(torch.randn(6, 1, 16), layout)
    x = torch.randn(6, 1, 16, requires_grad=True)
    layer(x, make_layout([6])).sum().backward()
    assert torch.isfinite(x.grad).all()


def test_long_or_many_sentences_take_the_other_way():
    assert few.few_and_short(torch.empty(128, 2, 4))
    assert not few.few_and_short(torch.empty(129, 1, 4))
    assert not few.few_and_short(torch.empty(2, 129, 4))
