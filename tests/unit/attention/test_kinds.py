"""Properties that every kind of head has. They walk the grammar's table."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_fixed.attention import EDGES, MixedHeadAttention, head_class
from fairseq_fixed.attention.base import Head
from fairseq_fixed.attention.mixed import build_head
from fairseq_fixed.attention.triangular import BLOCK
from fairseq_fixed.heads import KINDS
from fairseq_fixed.layout import SequenceLayout
from tests.conftest import PAD, every_spec, make_layout, make_tokens, make_vocabulary

SPECS = every_spec()
HEADS, DIM = 2, 3


def build(spec, **options) -> Head:
    return build_head(spec, HEADS, DIM, options).double().eval()


def inputs(head, layout, dtype=torch.float64):
    """Values, queries and keys (n, batch, channels); values zero at padding where it is needed."""

    def draw():
        return torch.randn(layout.n, layout.batch, HEADS * DIM, dtype=torch.float64).to(dtype)

    values = draw()
    if head.zero_padding and layout.hidden is not None:
        values = values.masked_fill(layout.hidden, 0)
    return (values, draw(), draw()) if head.scored else (values, None, None)


def dense(head, layout, values, queries, keys):
    """The definition applied: (batch, heads, n, n) times the values."""
    weights = head.weights(layout, queries, keys, dtype=torch.float64)
    split = values.double().view(layout.n, layout.batch, HEADS, DIM)
    return torch.einsum("bhij,jbhd->ibhd", weights, split).reshape(values.shape)


LENGTHS = [[1], [2], [3, 3], [1, 2, 3, 7], [5, 9, 4], [63, 64], [65, 40], [130, 129, 3, 1]]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("edge", EDGES)
def test_operator_equals_definition(spec, side, edge):
    head = build(spec, edge=edge)
    for lengths in LENGTHS:
        layout = make_layout(lengths, side)
        values, queries, keys = inputs(head, layout)
        fast = head.attend(values, layout, queries, keys)
        slow = dense(head, layout, values, queries, keys)
        inside = layout.inside
        torch.testing.assert_close(fast[inside], slow[inside], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_gradients(spec):
    head = build(spec)
    layout = make_layout([4, 6, 1])
    values, queries, keys = inputs(head, layout)
    given = [t.requires_grad_() for t in (values, queries, keys) if t is not None]
    inside = layout.inside

    def run(*tensors):
        return head.attend(tensors[0], layout, *tensors[1:])[inside]

    assert torch.autograd.gradcheck(run, given)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_rows_are_distributions_or_empty(spec):
    head = build(spec)
    layout = make_layout([7, 4])
    _, queries, keys = inputs(head, layout)
    weights = head.weights(layout, queries, keys, dtype=torch.float64)
    assert weights.shape == (2, HEADS, 7, 7)
    assert (weights >= 0).all()
    sums = weights.sum(-1)
    assert ((sums - 1).abs() < 1e-9).logical_or(sums == 0).all()
    assert (weights.masked_fill(layout.visible[:, None], 0) == 0).all()


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_finite_and_close_at_length_2000(spec, dtype):
    head = build(spec, max_positions=2000).to(dtype)
    layout = make_layout([2000, 1203])
    values, queries, keys = inputs(head, layout, dtype)
    fast = head.attend(values, layout, queries, keys)
    assert fast.dtype == dtype
    inside = layout.inside
    assert torch.isfinite(fast[inside]).all()
    slow = dense(
        head.double(),
        layout,
        values.double(),
        *((queries.double(), keys.double()) if head.scored else (None, None)),
    )
    # one rounding of an O(1) result: half an ulp of the dtype, and the scores' own rounding
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}[dtype]
    assert (fast.double() - slow)[inside].abs().max() < tolerance


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation made (elements of its storage)."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
        return out


def is_dense(spec) -> bool:
    cls = head_class(spec.kind)
    return cls.scored or getattr(cls, "dense_by_nature", False)


@pytest.mark.parametrize("spec", [s for s in SPECS if not is_dense(s)], ids=str)
def test_no_tensor_of_size_n_by_n(spec):
    n = 3000
    head = build(spec)
    for lengths in ([n], [n, n - 7]):
        values = torch.randn(n, len(lengths), HEADS * DIM, dtype=torch.float64, requires_grad=True)
        with LargestTensor() as mode:
            layout = make_layout(lengths)
            head.attend(values, layout).sum().backward()
        # a handful of float64 tensors of the values' size, or a block of the matrix for each row
        width = max(HEADS * DIM, BLOCK)
        assert mode.largest <= 4 * 8 * n * len(lengths) * width < 8 * n * n


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_fixed_heads_have_no_parameters(spec):
    head = build(spec)
    if getattr(head, "dense_by_nature", False):  # a matrix trained, or kept, in place of scores
        assert set(head.state_dict()) == {"logits"}
        return
    if spec.kind in ("learned",) or not head.scored:
        assert not list(head.parameters())
    assert not head.state_dict()


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_sentence_does_not_depend_on_its_batch(spec, side):
    mixed = MixedHeadAttention(12, [spec, spec]).double().eval()
    vocabulary = make_vocabulary()
    for n in (1, 2, 5, 70):
        x = torch.randn(n, 1, 12, dtype=torch.float64)
        tokens = make_tokens([n])
        alone = mixed(x, SequenceLayout.from_tokens(tokens, PAD, vocabulary))
        longer = n + 9
        batch = torch.randn(longer, 3, 12, dtype=torch.float64) * 100
        rows = slice(longer - n, None) if side == "left" else slice(0, n)
        batch[rows, 1] = x[:, 0]
        others = make_tokens([longer, n, 4], side)
        others[1, rows] = tokens[0]
        together = mixed(batch, SequenceLayout.from_tokens(others, PAD, vocabulary))
        torch.testing.assert_close(together[rows, 1], alone[:, 0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_little_forward_and_backward(spec, dtype):
    # fairseq's --amp; sums of cubes must not be taken to half precision behind our back
    mixed = MixedHeadAttention(12, [spec, spec], max_positions=300).eval()
    tokens = make_tokens([300, 120])
    layout = SequenceLayout.from_tokens(tokens, PAD, make_vocabulary())
    x = torch.randn(300, 2, 12)
    results = []
    for enabled in (False, True):
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            out = mixed(given, layout)
        out.float()[layout.inside].square().sum().backward()
        results.append((out.float()[layout.inside], given.grad))
    (out, grad), (cast_out, cast_grad) = results
    tolerance = 0.02 if dtype == torch.float16 else 0.1
    assert (cast_out - out).abs().max() < tolerance
    assert torch.isfinite(cast_grad).all()
    assert (cast_grad - grad).norm() <= 10 * tolerance * grad.norm()


def test_padding_left_in_the_values_would_be_noticed():
    # the property above fails for the known-unsafe variant: values not zeroed at padding
    head = build(next(s for s in SPECS if s.kind == "gaussian"))
    layout = make_layout([5, 3], "left")
    values = torch.randn(5, 2, HEADS * DIM, dtype=torch.float64)
    unsafe = head.attend(values, layout)[2, 1]
    assert not torch.allclose(unsafe, torch.zeros_like(unsafe))


def test_every_kind_is_walked():
    assert {spec.kind for spec in SPECS} == set(KINDS)


def test_a_row_of_padding_stays_finite():
    mixed = MixedHeadAttention(12 * len(SPECS), SPECS).eval()
    tokens = make_tokens([4, 4])
    tokens[0] = PAD
    layout = SequenceLayout.from_tokens(tokens, PAD, make_vocabulary())
    x = torch.randn(4, 2, 12 * len(SPECS), requires_grad=True)
    out = mixed(x, layout)
    assert torch.isfinite(out).all()
    out.sum().backward()
    assert torch.isfinite(x.grad).all()
