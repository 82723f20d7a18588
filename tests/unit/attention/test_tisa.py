import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_fixed.attention.mixed import build_head
from fairseq_fixed.attention.tisa import Tisa, toeplitz
from fairseq_fixed.heads import HeadSpec
from tests.conftest import make_layout

SCORED = [HeadSpec("learned"), HeadSpec("band", (2, 0)), HeadSpec("band", (2, 3))]


def test_formula():
    tisa = Tisa(3, 4).double()
    n = 6
    matrix = tisa.matrix(n)
    for h in range(3):
        a, b, c = (p[h].tolist() for p in (tisa.amplitude, tisa.sharpness, tisa.center))
        for i in range(n):
            for j in range(n):
                f = sum(a[s] * math.exp(-abs(b[s]) * ((j - i) - c[s]) ** 2) for s in range(len(a)))
                assert matrix[h, i, j].item() == pytest.approx(f, rel=1e-9)


def test_the_bias_depends_on_the_distance_alone():
    matrix = Tisa(2, 5).double().matrix(9)
    assert torch.equal(matrix[:, 1:, 1:], matrix[:, :-1, :-1])
    assert not torch.equal(matrix, matrix.transpose(1, 2))


def test_longer_sentences_see_the_same_function():
    tisa = Tisa(2, 5)
    short, long = tisa.matrix(7), tisa.matrix(300)
    torch.testing.assert_close(long[:, 40:47, 40:47], short)


def test_initialisation_is_the_released_codes():
    tisa = Tisa(200, 50)
    for parameter, mean, std in (
        (tisa.center, 0.0, 5.0),
        (tisa.amplitude, 0.1, 0.01),
        (tisa.sharpness, 0.1, 0.01),
    ):
        assert abs(parameter.mean().item() - mean) < 5 * std / 100  # 10,000 draws
        assert parameter.std().item() == pytest.approx(std, rel=0.05)
    assert sum(p.numel() for p in Tisa(8, 5).parameters()) == 3 * 5 * 8


def test_toeplitz():
    assert toeplitz(torch.arange(5)).tolist() == [[2, 3, 4], [1, 2, 3], [0, 1, 2]]
    assert toeplitz(torch.tensor([7])).tolist() == [[7]]


class Exponentials(TorchDispatchMode):
    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "exp" in str(func) and "expand" not in str(func):
            self.most = max(self.most, out.numel())
        return out


def test_no_table_of_exponentials():
    n, kernels = 1500, 5
    tisa = Tisa(2, kernels)
    with Exponentials() as mode:
        tisa.matrix(n).sum().backward()
    assert 0 < mode.most <= 2 * kernels * (2 * n - 1)


@pytest.mark.parametrize("spec", SCORED, ids=str)
@pytest.mark.parametrize("options", [{}, {"band_sparse": "norm"}], ids=str)
def test_operator_equals_definition_and_gradients(spec, options):
    head = build_head(spec, 2, 3, {"tisa_kernels": 4, **options}).double().eval()
    for lengths in ([9, 6, 1], [40], [70, 33]):
        for side in ("left", "right"):
            layout = make_layout(lengths, side)
            v, q, k = (
                torch.randn(layout.n, layout.batch, 6, dtype=torch.float64, requires_grad=True)
                for _ in range(3)
            )
            parameters = list(head.parameters())
            assert len(parameters) == 3
            weights = head.weights(layout, q, k, torch.float64)
            split = v.view(layout.n, layout.batch, 2, 3)
            slow = torch.einsum("bhij,jbhd->ibhd", weights, split).reshape(v.shape)
            fast = head.attend(v, layout, q, k)
            inside = layout.inside
            torch.testing.assert_close(fast[inside], slow[inside], rtol=1e-9, atol=1e-11)
            probe = torch.randn_like(fast[inside])
            wanted = [v, q, k, *parameters]
            slow_grads = torch.autograd.grad((slow[inside] * probe).sum(), wanted)
            fast_grads = torch.autograd.grad((fast[inside] * probe).sum(), wanted)
            for a, b in zip(fast_grads, slow_grads, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_gradcheck():
    tisa = Tisa(2, 3).double()
    assert torch.autograd.gradcheck(
        lambda a, b, c: torch.func.functional_call(
            tisa, {"amplitude": a, "sharpness": b, "center": c}, (torch.arange(-4, 5),)
        ),
        [p.detach().clone().requires_grad_() for p in tisa.parameters()],
    )


def test_at_least_one_kernel():
    with pytest.raises(ValueError, match="at least one"):
        Tisa(2, 0)
