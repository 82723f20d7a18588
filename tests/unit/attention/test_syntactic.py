"""Σ₂ of PAPERS.md section 3, evaluation and training, against loops over one sentence."""

import pytest
import torch

from fairseq_fixed.attention.mixed import MixedHeadAttention
from fairseq_fixed.attention.syntactic import NOISE_KEYS, Syntactic
from fairseq_fixed.heads import parse_mix
from fairseq_fixed.layout import SequenceLayout
from tests.conftest import make_layout

DRAWS = [(width, noise) for width in (0, 1, 3, 40) for noise in (0.0, 0.3)]


def by_hand(n: int, width: int) -> torch.Tensor:
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        near = [j for j in range(n) if abs(i - j) <= width]
        for j in near:
            matrix[i, j] = 1 / len(near)
    return matrix


@pytest.mark.parametrize("width", [0, 1, 3, 40])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_evaluation_is_the_mean_of_the_band(width, n):
    head = Syntactic(1, 1, width).eval()
    weights = head.weights(make_layout([n]), dtype=torch.float64)
    torch.testing.assert_close(weights[0, 0], by_hand(n, width))


@pytest.mark.parametrize(("width", "noise"), DRAWS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_operator_equals_definition_for_one_draw(width, noise, side):
    head = Syntactic(3, 2, width, syntactic_noise=noise).train()
    layout = make_layout([12, 5, 1, 9], side)
    draw = head.draw(layout, torch.float64)
    values = torch.randn(12, 4, 6, dtype=torch.float64)
    if layout.hidden is not None:
        values = values.masked_fill(layout.hidden, 0)
    weights = head.weights(layout, dtype=torch.float64, draw=draw)
    split = values.view(12, 4, 3, 2)
    expected = torch.einsum("bhij,jbhd->ibhd", weights, split).reshape(values.shape)
    inside = layout.inside
    torch.testing.assert_close(head.attend(values, layout, draw=draw)[inside], expected[inside])
    # nothing outside a sentence is attended to, and every row is a distribution
    assert (weights.masked_fill(layout.visible[:, None], 0) == 0).all()
    sums = weights.sum(-1).permute(2, 0, 1)[inside]
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_gradients_of_a_draw(noise):
    head = Syntactic(2, 2, 2, syntactic_noise=noise).train()
    layout = make_layout([7, 4])
    draw = head.draw(layout, torch.float64)
    values = torch.randn(7, 2, 4, dtype=torch.float64)
    values = values.masked_fill(layout.hidden, 0).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: head.attend(v, layout, draw=draw), [values])


def test_kept_entries_weigh_the_same_and_emptied_rows_are_the_identity():
    width, n = 2, 9
    head = Syntactic(4, 1, width, syntactic_dropout=0.8).train()
    layout = make_layout([n] * 50)
    weights = head.weights(layout, dtype=torch.float64)
    emptied = 0
    for matrix in weights.flatten(0, 1):
        for i in range(n):
            kept = [j for j in range(n) if matrix[i, j] > 0]
            assert all(abs(i - j) <= width for j in kept)
            assert all(matrix[i, j] == pytest.approx(1 / len(kept)) for j in kept)
            emptied += kept == [i]
    # alone on the diagonal: emptied (0.8^m) or nothing else kept (0.2 · 0.8^(m-1)); m = 3, 4, 5
    expected = sum(0.8 ** (m - 1) for m in (3, 4, 5, 5, 5, 5, 5, 4, 3)) * 200
    assert emptied == pytest.approx(expected, rel=0.15)


def test_probability():
    layout = make_layout([400])
    for p in (0.0, 0.4, 1.0):
        band = Syntactic(8, 1, 3, syntactic_dropout=p).draw(layout).band[3:-3]
        others = torch.cat([band[..., :3], band[..., 4:]], dim=-1) > 0  # emptied rows fill k = 0
        assert others.double().mean().item() == pytest.approx(1 - p, abs=0.02)


def test_draws_differ_by_head_sentence_and_pass():
    head = Syntactic(2, 1, 3).train()
    layout = make_layout([30, 30])
    band = head.draw(layout).band
    assert not torch.equal(band[:, :, 0], band[:, :, 1])
    assert not torch.equal(band[:, 0], band[:, 1])
    values = torch.randn(30, 2, 2)
    assert not torch.equal(head.attend(values, layout), head.attend(values, layout))
    head.eval()
    assert torch.equal(head.attend(values, layout), head.attend(values, layout))


def test_without_dropout_training_is_evaluation():
    head = Syntactic(2, 2, 3, syntactic_dropout=0.0)
    layout = make_layout([30, 11, 1])
    values = torch.randn(30, 3, 4, dtype=torch.float64).masked_fill(layout.hidden, 0)
    inside = layout.inside
    trained = head.train().attend(values, layout)[inside]
    torch.testing.assert_close(trained, head.eval().attend(values, layout)[inside])


def test_noise_is_sparse_bounded_and_outside_the_band():
    width, epsilon, n = 1, 0.2, 20
    layout = make_layout([n, 6, 2])
    noisy = Syntactic(8, 1, width, syntactic_noise=epsilon).train()
    weights = noisy.weights(layout, dtype=torch.float64)
    position = torch.arange(n)
    outside = (position[:, None] - position).abs() > width
    noise = weights * outside
    assert 0 < noise.max() <= epsilon
    assert (noise > 0).sum(-1).max() == NOISE_KEYS
    assert (noise[2] == 0).all()  # two tokens: all is band
    assert (noisy.eval().weights(layout) * outside == 0).all()


def test_training_in_half_precision_sums_in_float32():
    head = Syntactic(2, 2, 200, syntactic_dropout=0.1, syntactic_noise=0.1).train()
    layout = make_layout([500])
    draw = head.draw(layout)
    values = torch.randn(500, 1, 4).bfloat16()
    out = head.attend(values, layout, draw=draw)
    assert out.dtype == torch.bfloat16
    exact = head.attend(values.double(), layout, draw=draw)
    torch.testing.assert_close(out, exact.bfloat16(), rtol=1e-2, atol=1e-3)


def test_padding_inside_a_sentence_is_not_attended_to():
    mask = torch.zeros(1, 6, dtype=torch.bool)
    mask[0, 2] = True
    layout = SequenceLayout(mask)
    head = Syntactic(1, 1, 1).eval()
    expected = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(head.weights(layout)[0, 0, :2], expected)
    values = torch.randn(6, 1, 1).masked_fill(layout.hidden, 0)
    dense = head.weights(layout)[0, 0] @ values[:, 0]
    keep = [0, 1, 3, 4, 5]
    torch.testing.assert_close(head.attend(values, layout)[keep, 0], dense[keep])


def test_options_reach_the_head_and_are_checked():
    mixed = MixedHeadAttention(
        8, parse_mix("2xsyntactic:3+2l"), syntactic_dropout=0.25, syntactic_noise=0.1
    )
    assert (mixed.runs[0].dropout, mixed.runs[0].noise) == (0.25, 0.1)
    with pytest.raises(ValueError, match=r"syntactic_dropout is 1\.5"):
        Syntactic(1, 1, 1, syntactic_dropout=1.5)
    with pytest.raises(ValueError, match=r"syntactic_noise is -1"):
        Syntactic(1, 1, 1, syntactic_noise=-1)
    with pytest.raises(ValueError, match="width is -1"):
        Syntactic(1, 1, -1)
