"""Queries cut into parts: the same attention, on more cores."""

import pytest
import torch
import torch.nn.functional as F

from fairseq_fixed.attention import fused
from fairseq_fixed.attention.fused import fused_attention, parts_of


def inputs(batch, heads, n, d=4, dtype=torch.float64):
    torch.manual_seed(n)
    # (n, batch, heads, d) in memory, as projections leave them
    return [
        torch.randn(n, batch, heads, d, dtype=dtype).permute(1, 2, 0, 3).requires_grad_()
        for _ in range(3)
    ]


def key_bias(batch, n):
    bias = torch.zeros(batch, 1, 1, n, dtype=torch.float64)
    bias[-1, ..., : n // 3] = -torch.inf
    return bias


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(fused, "ROWS", 3)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("batch", "heads", "n"), [(1, 1, 12), (1, 1, 13), (2, 1, 7), (3, 1, 50)])
def test_in_parts_it_is_the_same_with_the_same_gradients(four_cores, batch, heads, n, masked):
    q, k, v = inputs(batch, heads, n)
    mask = key_bias(batch, n) if masked else None
    assert parts_of(q, mask) > 1
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    found = fused_attention(q, k, v, mask)
    torch.testing.assert_close(found, expected)
    gradient = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, (q, k, v), gradient),
        torch.autograd.grad(expected, (q, k, v), gradient),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_gradients(four_cores):
    assert torch.autograd.gradcheck(lambda *x: fused_attention(*x, None), inputs(1, 2, 7))


def test_no_more_parts_than_cores_and_none_for_short_sentences(four_cores):
    def parts(batch, heads, n, mask=None):
        return parts_of(torch.zeros(batch, heads, n, 2), mask)

    assert [parts(1, 1, 100), parts(1, 2, 100), parts(2, 1, 100), parts(1, 3, 100)] == [4, 2, 2, 2]
    assert parts(1, 4, 100) == parts(64, 8, 100) == 1
    assert [parts(1, 1, n) for n in (0, 1, 5, 6, 9)] == [1, 1, 1, 2, 3]
    # a row of scores' own mask, as TISA's, would have to be cut, too
    assert parts(1, 1, 100, torch.zeros(1, 1, 100, 100)) == 1


def test_each_part_sees_all_keys_and_nothing_is_left_over(four_cores, monkeypatch):
    seen = []
    real = F.scaled_dot_product_attention

    def spy(q, k, v, **options):
        seen.append((q.shape, k.shape))
        return real(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    out = fused_attention(*inputs(1, 1, 14), None)
    assert seen == [((4, 1, 4, 4), (4, 1, 14, 4))]
    assert out.shape == (1, 1, 14, 4)
