"""The fixed patterns against PAPERS.md section 1, written out as loops over one sentence."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_fixed.attention import head_class
from tests.conftest import make_layout


def table(kind: str, n: int) -> torch.Tensor:
    """Row i, column j as the table of the paper's patterns has them."""
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        columns = {
            "current": {i: 1},
            "previous": {i - 1: 1} if i > 0 else {},
            "next": {i + 1: 1} if i + 1 < n else {},
            "left": {j: (j + 1) ** 3 for j in range(0, i - 1)},
            "right": {j: (n - j) ** 3 for j in range(i + 2, n)},
            "end": {j: (j + 1) ** 3 for j in range(n)},
            "start": {j: (n - j) ** 3 for j in range(n)},
            "last": {n - 1: 1},
            "first": {0: 1},
        }[kind]
        total = sum(columns.values())
        for j, weight in columns.items():
            matrix[i, j] = weight / total
    return matrix


KINDS = ["current", "previous", "next", "left", "right", "end", "start", "last", "first"]
MIRRORS = [("previous", "next"), ("left", "right"), ("start", "end"), ("first", "last")]


@pytest.mark.parametrize("kind", KINDS)
@given(n=st.integers(1, 40))
def test_definition_is_the_papers(kind, n):
    weights = head_class(kind)(1, 1).weights(make_layout([n]), dtype=torch.float64)
    torch.testing.assert_close(weights[0, 0], table(kind, n), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("kind", "mirror"), MIRRORS)
@given(n=st.integers(1, 150))
def test_mirrors(kind, mirror, n):
    values = torch.randn(n, 1, 4, dtype=torch.float64)
    one = head_class(kind)(1, 4).attend(values, make_layout([n]))
    other = head_class(mirror)(1, 4).attend(values.flip(0), make_layout([n])).flip(0)
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "edge_rows", "edge_token"),
    [("previous", [0], 0), ("next", [5], 5), ("left", [0, 1], 0), ("right", [4, 5], 5)],
)
def test_edges(kind, edge_rows, edge_token):
    n, layout = 6, make_layout([6])
    for edge in ("zero", "self", "clamp"):
        weights = head_class(kind)(1, 1, edge=edge).weights(layout, dtype=torch.float64)[0, 0]
        for i in edge_rows:
            expected = torch.zeros(n, dtype=torch.float64)
            if edge != "zero":
                expected[i if edge == "self" else edge_token] = 1
            torch.testing.assert_close(weights[i], expected)
        others = [i for i in range(n) if i not in edge_rows]
        torch.testing.assert_close(weights[others].sum(-1), torch.ones(len(others)).double())


def test_unknown_edge():
    with pytest.raises(ValueError, match="wrap"):
        head_class("previous")(1, 1, edge="wrap")


@pytest.mark.parametrize("kind", ["left", "right", "start", "end"])
def test_long_sentences_keep_float32_precision(kind):
    # rows far from the heavy end have tiny cubes; a difference of two sums would lose them
    n = 5000
    values = torch.randn(n, 1, 2, dtype=torch.float64)
    exact = head_class(kind)(1, 2).attend(values, make_layout([n]))
    single = head_class(kind)(1, 2).attend(values.float(), make_layout([n]))
    assert (single.double() - exact).abs().max() < 1e-5
