"""Translation invariance: properties that need no trained model (arXiv 2106.01950)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_fixed.analysis.toeplitz import diagonal_means, nearest_toeplitz, toeplitz_r2


def test_the_projection_is_the_mean_along_each_diagonal():
    torch.manual_seed(0)
    matrix = torch.randn(3, 7, 7, dtype=torch.float64)
    found = nearest_toeplitz(matrix)
    means = diagonal_means(matrix)
    for k in range(-6, 7):
        diagonal = matrix.diagonal(k, -2, -1)
        torch.testing.assert_close(means[:, k + 6], diagonal.mean(-1))
        expected = diagonal.mean(-1, keepdim=True).expand_as(diagonal)
        torch.testing.assert_close(found.diagonal(k, -2, -1), expected)


@given(st.integers(2, 12), st.integers(0, 1000))
def test_no_other_toeplitz_matrix_is_nearer(n, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(n, n, generator=generator, dtype=torch.float64)
    found = nearest_toeplitz(matrix)
    # orthogonal to what is left over, and left as it is by a second projection
    assert abs(float(((matrix - found) * found).sum())) < 1e-9
    torch.testing.assert_close(nearest_toeplitz(found), found)
    other = nearest_toeplitz(torch.randn(n, n, generator=generator, dtype=torch.float64))
    assert (matrix - found).square().sum() <= (matrix - found - 0.1 * other).square().sum()


def sinusoids(n, d):
    position = torch.arange(n, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(d // 2, dtype=torch.float64) * (-math.log(1e4) / (d // 2)))
    return torch.cat([(position * frequency).sin(), (position * frequency).cos()], dim=1)


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("border", [0, 3])
def test_sinusoidal_embeddings_depend_on_distance_alone(diagonal, border):
    e = sinusoids(40, 16)
    assert toeplitz_r2(e @ e.t(), border=border, diagonal=diagonal) == pytest.approx(1)


def test_independent_embeddings_keep_their_main_diagonal_alone():
    """About d / (d + n) with it and 2 / n without: a mean over draws, standard error 0.2 %."""
    n, d = 120, 60
    torch.manual_seed(0)
    e = torch.randn(60, n, d, dtype=torch.float64)
    gram = e @ e.transpose(1, 2)
    assert toeplitz_r2(gram).mean() == pytest.approx(d / (d + n), abs=0.02)
    assert toeplitz_r2(gram, diagonal=False).mean() == pytest.approx(2 / n, abs=0.004)


def test_borders_are_left_out():
    torch.manual_seed(0)
    matrix = sinusoids(20, 8) @ sinusoids(20, 8).t()
    spoiled = matrix.clone()
    spoiled[:2] += torch.randn(2, 20)
    spoiled[:, -2:] += torch.randn(20, 2)
    assert toeplitz_r2(spoiled) < 0.99
    assert toeplitz_r2(spoiled, border=2) == pytest.approx(1)


@pytest.mark.parametrize("n", [2, 5, 50])
@pytest.mark.parametrize("value", [0.0, 0.2, 0.3, -7.7])
def test_a_constant_matrix_has_nothing_to_explain(n, value):
    assert toeplitz_r2(torch.full((n, n), value, dtype=torch.float64)) == 1
    assert toeplitz_r2(torch.eye(5), diagonal=False) == 1


@pytest.mark.parametrize("border", [-1, 2, 3])
def test_borders_that_leave_nothing(border):
    with pytest.raises(ValueError, match=r"leaves|border of -1"):
        toeplitz_r2(torch.eye(5), border=border)
