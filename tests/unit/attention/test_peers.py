"""Peers of section 3's end in PAPERS.md: Gaussian, Synthesizer and ALiBi heads, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_fixed.attention import EDGES
from fairseq_fixed.attention.alibi import Alibi
from fairseq_fixed.attention.banded import toeplitz_product
from fairseq_fixed.attention.gaussian import Gaussian
from fairseq_fixed.attention.learned import Learned
from fairseq_fixed.attention.mixed import build_head
from fairseq_fixed.attention.positional import Next, Previous
from fairseq_fixed.attention.synthesizer import Random, RandomFrozen
from fairseq_fixed.heads import parse_mix
from tests.conftest import make_layout

SHAPES = [(-1, 1), (1, 1), (0, 0.5), (0.5, 0.01), (-2.5, 3), (7, 2), (-1, 0.001), (0, 200)]


def density(i: int, j: int, offset: float, sigma: float) -> float:
    z = (j - (i + offset)) / sigma
    return math.exp(-0.5 * z * z) / (sigma * math.sqrt(2 * math.pi))


@pytest.mark.parametrize(("offset", "sigma"), SHAPES)
@pytest.mark.parametrize("n", [1, 2, 12, 40])
def test_gaussian_is_the_untruncated_one_to_float32_resolution(offset, sigma, n):
    weights = Gaussian(1, 1, offset, sigma).weights(make_layout([n]), dtype=torch.float64)[0, 0]
    as_written = Gaussian(1, 1, offset, sigma, gaussian_rows="density")
    raw = as_written.weights(make_layout([n]), dtype=torch.float64)[0, 0]
    for i in range(n):
        row = torch.tensor([density(i, j, offset, sigma) for j in range(n)]).double()
        # what is left out is below float32's resolution of the density's peak …
        nearest = abs(offset - round(offset)) / sigma
        peak = math.exp(-0.5 * nearest**2) / (sigma * math.sqrt(2 * math.pi))
        assert (raw[i] - row).abs().max() <= 2**-24 * peak
        # … and of the whole row, wherever its centre lies in the sentence
        if 0 <= i + offset <= n - 1 and row.sum() > 0:
            assert (weights[i] - row / row.sum()).abs().sum() < 2**-23


def test_gaussian_rows_of_the_authors_do_not_sum_to_one_at_the_border():
    layout = make_layout([9])
    raw = Gaussian(1, 1, -1, 1, gaussian_rows="density").weights(layout, dtype=torch.float64)
    assert raw[0, 0, 0].sum() == pytest.approx(
        sum(density(0, j, -1, 1) for j in range(9)), abs=1e-7
    )
    assert raw[0, 0, 0].sum() < 0.31
    assert raw[0, 0, 5].sum() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("rows", ["renormalized", "density"])
@pytest.mark.parametrize("edge", EDGES)
def test_gaussian_operator(shape, side, rows, edge):
    head = Gaussian(2, 2, *shape, gaussian_rows=rows, edge=edge)
    for lengths in ([1], [150, 70, 2], [64], [65, 1]):
        layout = make_layout(lengths, side)
        values = torch.randn(layout.n, layout.batch, 4, dtype=torch.float64)
        if layout.hidden is not None:
            values = values.masked_fill(layout.hidden, 0)
        weights = head.weights(layout, dtype=torch.float64)[:, 0]
        inside = layout.inside
        torch.testing.assert_close(
            head.attend(values, layout)[inside],
            torch.einsum("bij,jbc->ibc", weights, values)[inside],
            rtol=1e-9,
            atol=1e-11,
        )


@pytest.mark.parametrize("edge", EDGES)
def test_a_narrow_gaussian_is_the_neighbour(edge):
    layout = make_layout([8, 5, 1])
    for offset, neighbour in ((-1, Previous), (1, Next)):
        narrow = Gaussian(1, 1, offset, 0.01, edge=edge).weights(layout)
        assert torch.equal(narrow, neighbour(1, 1, edge=edge).weights(layout))


def test_gaussian_beyond_the_sentence_has_a_gradient_of_zero():
    values = torch.randn(4, 1, 2, requires_grad=True)
    out = Gaussian(1, 2, 1000, 1).attend(values, make_layout([4]))
    out.sum().backward()
    assert (out == 0).all()
    assert (values.grad == 0).all()


def test_gaussian_errors():
    with pytest.raises(ValueError, match="sigma is 0"):
        Gaussian(1, 1, 1, 0)
    with pytest.raises(ValueError, match="'softmax'"):
        Gaussian(1, 1, 1, 1, gaussian_rows="softmax")


@given(n=st.integers(1, 200), width=st.integers(1, 90), low=st.integers(-250, 250))
def test_toeplitz_product(n, width, low):
    x = torch.randn(n, 1, 2, dtype=torch.float64)
    taps = torch.randn(width, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for k in range(width):
        rows = [i for i in range(n) if 0 <= i + low + k < n]
        expected[rows] += taps[k] * x[[i + low + k for i in rows]]
    out = toeplitz_product(x, taps.tolist(), low)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("n", "width", "low"), [(5, 3, -4), (7, 40, -20), (4, 2, 9), (70, 33, 3)])
def test_toeplitz_product_has_the_right_gradient(n, width, low):
    x = torch.randn(n, 1, 2, dtype=torch.float64, requires_grad=True)
    taps = torch.randn(width).tolist()
    assert torch.autograd.gradcheck(lambda given: toeplitz_product(given, taps, low), [x])


@pytest.mark.parametrize("cls", [Random, RandomFrozen])
@pytest.mark.parametrize("side", ["left", "right"])
def test_random_counts_from_the_sentences_start(cls, side):
    head = cls(2, 1, max_positions=9)
    layout = make_layout([7, 4, 1], side)
    weights = head.weights(layout, dtype=torch.float64)
    for b, n in enumerate((7, 4, 1)):
        real = layout.inside[:, b]
        expected = head.logits[:, :n, :n].double().softmax(-1)
        torch.testing.assert_close(weights[b][:, real][:, :, real], expected)


def test_random_is_trained_and_random_frozen_is_saved():
    layout, values = make_layout([5, 3]), torch.randn(5, 2, 2)
    trained, frozen = Random(2, 1, max_positions=6), RandomFrozen(2, 1, max_positions=6)
    trained.double()
    logits = trained.logits.detach().clone().requires_grad_()
    del trained.logits  # a plain tensor in the parameter's place, for gradcheck

    def run(given):
        trained.logits = given
        return trained.attend(values.double(), layout)[layout.inside]

    assert torch.autograd.gradcheck(run, [logits])
    assert not list(frozen.parameters())
    assert set(frozen.state_dict()) == {"logits"}
    other = RandomFrozen(2, 1, max_positions=6)
    assert not torch.equal(other.attend(values, layout), frozen.attend(values, layout))
    other.load_state_dict(frozen.state_dict())
    assert torch.equal(other.attend(values, layout), frozen.attend(values, layout))


def test_random_heads_differ_from_the_start():
    weights = Random(2, 1, max_positions=8).weights(make_layout([8]))[0]
    assert (weights[0] - weights[1]).abs().max() > 0.1


def test_random_dropout_is_of_weights_and_differs_by_sentence():
    head = Random(1, 1, dropout=0.5, max_positions=30).train()
    layout, values = make_layout([30, 30]), torch.ones(30, 2, 1)
    out = head.attend(values, layout)
    assert not torch.equal(out[:, 0], out[:, 1])
    torch.testing.assert_close(head.eval().attend(values, layout), values)


@pytest.mark.parametrize("cls", [Random, RandomFrozen])
def test_a_sentence_longer_than_the_matrix_is_named(cls):
    head = cls(1, 1, max_positions=6)
    with pytest.raises(ValueError, match=r"6 positions .* 7 tokens"):
        head.attend(torch.randn(7, 1, 1), make_layout([7]))
    # padding beyond the matrix is no error
    for side in ("left", "right"):
        layout = make_layout([6, 4], side, n=9)
        values = torch.randn(9, 2, 1, dtype=torch.float64).masked_fill(layout.hidden, 0)
        weights = head.weights(layout, dtype=torch.float64)[:, 0]
        dense = torch.einsum("bij,jbc->ibc", weights, values)
        inside = layout.inside
        torch.testing.assert_close(head.double().attend(values, layout)[inside], dense[inside])


def test_max_positions_is_an_option():
    (spec,) = parse_mix("random_frozen")
    assert build_head(spec, 1, 1, {"max_positions": 11}).logits.shape == (1, 11, 11)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_alibi_by_hand(heads):
    n, dim = 6, 3
    head = Alibi(heads, dim).eval()
    queries, keys = torch.randn(2, n, 1, heads * dim, dtype=torch.float64)
    weights = head.weights(make_layout([n]), queries, keys, dtype=torch.float64)
    for h in range(heads):
        slope = 2 ** (-8 * (h + 1) / heads)
        channels = slice(h * dim, (h + 1) * dim)
        for i in range(n):
            scores = [
                float(queries[i, 0, channels] @ keys[j, 0, channels]) / math.sqrt(dim)
                - slope * abs(i - j)
                for j in range(n)
            ]
            expected = torch.tensor(scores, dtype=torch.float64).softmax(0)
            torch.testing.assert_close(weights[0, h, i], expected)


def test_alibi_prefers_the_near_and_has_no_parameters():
    head = Alibi(4, 2).eval()
    zeros = torch.zeros(5, 1, 8)
    weights = head.weights(make_layout([5]), zeros, zeros)[0, :, 2]
    assert (weights[:, 2] > weights[:, 1]).all()
    assert torch.equal(weights[:, 1], weights[:, 3])
    assert not head.state_dict()
    plain = Learned(4, 2).weights(make_layout([5]), zeros, zeros)[0, :, 2]
    torch.testing.assert_close(plain, torch.full_like(plain, 0.2))


def test_alibi_and_tisa_add_up():
    head = Alibi(2, 2, tisa_kernels=3)
    layout = make_layout([5])
    both = head.bias(layout, torch.float32)
    alone = Alibi(2, 2).bias(layout, torch.float32)
    torch.testing.assert_close(both - alone, head.tisa.matrix(5)[None])
