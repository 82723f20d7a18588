"""Exact projections on bands and bands plus few entries, against other members of the sets."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_fixed.analysis.projection import (
    distance,
    draw_rare,
    draw_syntactic,
    nearest_draw,
    project_band,
    project_band_sparse,
)


def attention(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, n, generator=generator, dtype=torch.float64).mul(2).softmax(-1)


@given(st.integers(1, 10), st.integers(0, 10), st.integers(0, 1000))
def test_no_other_band_matrix_is_nearer(n, w, seed):
    matrix = attention(n, seed)
    found = project_band(matrix, w)
    for i, j in itertools.product(range(n), repeat=2):
        assert found[i, j] == (matrix[i, j] if abs(i - j) <= w else 0)
    other = found + project_band(attention(n, seed + 1), w) * 0.1
    assert distance(matrix, found) <= distance(matrix, other)
    assert (matrix - found).norm() <= (matrix - other).norm()


@pytest.mark.parametrize(("w", "k"), [(0, 1), (1, 2), (2, 1), (1, 0), (0, 6), (9, 2)])
@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_no_other_choice_of_entries_is_nearer(w, k, epsilon):
    """Every choice of k entries outside the band, row by row."""
    matrix = attention(6, 3)
    found = project_band_sparse(matrix, w, k, epsilon)
    for i in range(6):
        outside = [j for j in range(6) if abs(i - j) > w]
        extra = [j for j in outside if found[i, j] > 0]
        assert len(extra) <= k
        assert all(found[i, j] <= epsilon for j in extra)
        best = min(
            sum(
                float(matrix[i, j]) - (min(epsilon, float(matrix[i, j])) if j in choice else 0)
                for j in outside
            )
            for choice in itertools.combinations(outside, min(k, len(outside)))
        )
        assert float((matrix[i] - found[i]).abs().sum()) == pytest.approx(best)


def test_nothing_further_is_the_band_and_everything_is_the_matrix():
    matrix = attention(7)
    assert torch.equal(project_band_sparse(matrix, 2, 0), project_band(matrix, 2))
    assert torch.equal(project_band_sparse(matrix, 2, 7), matrix)
    assert torch.equal(project_band(matrix, 6), matrix)
    batch = torch.stack([matrix, attention(7, 1)])
    assert torch.equal(project_band_sparse(batch, 1, 2)[1], project_band_sparse(batch[1], 1, 2))


def test_draws_are_of_their_sets():
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        band = draw_syntactic(9, 2, generator)
        assert torch.equal(project_band(band, 2), band)
        sums = band.sum(-1)
        assert (((sums - 1).abs() < 1e-9) | (sums == 0)).all()
        rare = draw_rare(9, 1, 2, generator)
        targets = rare.argmax(-1)
        assert torch.equal(rare.sum(-1), torch.ones(9, dtype=torch.float64))
        moved = targets != torch.arange(9)
        assert ((targets - torch.arange(9)).abs() <= 1).all()
        assert len(set(targets[moved].tolist())) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_no_draw_of_a_band_is_nearer_than_the_projection(seed):
    matrix = attention(8, seed)
    found = nearest_draw(matrix, 3, 0, draws=50, seed=seed)
    assert found.distance >= distance(matrix, project_band(matrix, 3))


def test_the_search_finds_what_is_there():
    assert nearest_draw(torch.eye(8), 3, 2) == (0.0, "identity")
    planted = draw_rare(8, 7, 1, torch.Generator().manual_seed(5))  # all attend to one token
    assert nearest_draw(planted, 7, 1, draws=200) == (0.0, "rare tokens")
    banded = draw_syntactic(8, 1, torch.Generator().manual_seed(5))
    assert nearest_draw(banded, 1, 0, draws=200).family == "band"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: project_band(m, -1), "w is -1"),
        (lambda m: project_band_sparse(m, 1, -1), "k is -1"),
        (lambda m: project_band_sparse(m, 1, 1, -0.1), r"epsilon is -0\.1"),
        (lambda m: nearest_draw(m, 1, 9), "num_pos is 9"),
    ],
)
def test_what_makes_no_sense(call, message):
    with pytest.raises(ValueError, match=message):
        call(attention(4))
