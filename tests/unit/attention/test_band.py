import pytest
import torch

from fairseq_fixed.attention.band import Band, _Windows
from fairseq_fixed.attention.learned import Learned
from fairseq_fixed.layout import SequenceLayout
from tests.conftest import EOS, PAD, make_layout, make_vocabulary

HEADS, DIM = 2, 3


def draw(layout):
    return [torch.randn(layout.n, layout.batch, HEADS * DIM, dtype=torch.float64) for _ in "vqk"]


def dense(head, layout, v, q, k):
    weights = head.weights(layout, q, k, torch.float64)
    split = v.view(layout.n, layout.batch, HEADS, DIM)
    return torch.einsum("bhij,jbhd->ibhd", weights, split).reshape(v.shape)


VARIANTS = {
    "renormalized": {},
    "exact": {"band_projection": "exact"},
    "norm": {"band_sparse": "norm"},
    "epsilon": {"band_epsilon": 0.05},
    "exact norm epsilon": {
        "band_projection": "exact",
        "band_sparse": "norm",
        "band_epsilon": 0.05,
    },
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize(("width", "num_pos"), [(0, 0), (0, 2), (3, 0), (3, 1), (8, 4), (50, 100)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_operator_equals_definition(options, width, num_pos, side):
    head = Band(HEADS, DIM, width, num_pos, **options).double()
    for lengths in ([1], [2, 1], [9, 5], [31, 32, 7], [33], [64, 65], [230, 100, 3]):
        layout = make_layout(lengths, side)
        v, q, k = draw(layout)
        inside = layout.inside
        torch.testing.assert_close(
            head.attend(v, layout, q, k)[inside], dense(head, layout, v, q, k)[inside]
        )


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_gradients(options):
    head = Band(HEADS, DIM, 1, 2, **options).double()
    layout = make_layout([5, 7])
    given = [t.requires_grad_() for t in draw(layout)]
    inside = layout.inside
    assert torch.autograd.gradcheck(lambda v, q, k: head.attend(v, layout, q, k)[inside], given)


def by_hand(scores, width, extra, exact, epsilon=1.0):
    """One sentence, one head: the band of half-width W and the columns `extra`."""
    n = scores.shape[0]
    out = torch.zeros_like(scores)
    for i in range(n):
        band = [j for j in range(n) if abs(i - j) <= width]
        beyond = [j for j in extra if abs(i - j) > width]
        over = range(n) if exact else [*band, *beyond]
        total = sum(scores[i, j].exp() for j in over)
        for j in band:
            out[i, j] = scores[i, j].exp() / total
        for j in beyond:
            out[i, j] = (scores[i, j].exp() / total).clamp(max=epsilon)
    return out


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("num_pos", [0, 2])
@pytest.mark.parametrize("epsilon", [1.0, 0.1])
def test_definition(exact, num_pos, epsilon):
    n = 9
    projection = "exact" if exact else "renormalized"
    head = Band(1, 4, 2, num_pos, band_projection=projection, band_epsilon=epsilon)
    tokens = torch.tensor([[6, 30, 8, 39, 7, 39, 5, 4, EOS]])  # the rarest: 39 at 3, then at 5
    layout = SequenceLayout.from_tokens(tokens, PAD, make_vocabulary())
    q, k = (torch.randn(n, 1, 4, dtype=torch.float64) for _ in range(2))
    scores = q[:, 0] @ k[:, 0].t() / 2
    expected = by_hand(scores, 2, [3, 5][:num_pos], exact, epsilon)
    torch.testing.assert_close(head.weights(layout, q, k, torch.float64)[0, 0], expected)


def test_keys_by_norm_are_each_heads_longest():
    head = Band(2, 1, 0, 1, band_sparse="norm")
    layout = SequenceLayout.from_tokens(torch.tensor([[PAD, 4, 5, 6, EOS]]), PAD, make_vocabulary())
    keys = torch.tensor([[99.0, 99.0], [1, -9], [-7, 2], [3, 9], [0, 0]])[:, None, :]
    index, valid = head._chosen(layout, keys)
    assert index[0].tolist() == [[2], [1]]  # padding never; a tie goes to the left
    assert valid.all()


def test_a_wide_band_is_a_learned_head():
    layout = make_layout([40, 21])
    v, q, k = draw(layout)
    inside = layout.inside
    wide = Band(HEADS, DIM, 40).attend(v, layout, q, k)
    torch.testing.assert_close(wide[inside], Learned(HEADS, DIM).attend(v, layout, q, k)[inside])


def test_band_zero_is_current():
    layout = make_layout([12, 5])
    v, q, k = draw(layout)
    inside = layout.inside
    torch.testing.assert_close(Band(HEADS, DIM, 0).attend(v, layout, q, k)[inside], v[inside])


def test_memory_grows_with_the_length_not_its_square():
    from tests.unit.attention.test_kinds import LargestTensor

    largest = []
    for n in (1000, 2000, 4000):
        layout = make_layout([n, n - 3])
        v, q, k = (t.requires_grad_() for t in draw(layout))
        with LargestTensor() as mode:
            Band(HEADS, DIM, 4, 2).attend(v, layout, q, k).sum().backward()
        largest.append(mode.largest)
    assert largest[2] <= 2.2 * largest[1] <= 2.2**2 * largest[0]
    assert largest[2] < 8 * 4000 * 4000 / 2


def test_a_band_wider_than_the_sentence_costs_no_more_than_the_sentence():
    from tests.unit.attention.test_kinds import LargestTensor

    layout = make_layout([30, 22])
    v, q, k = draw(layout)
    largest = []
    for width, num_pos in ((29, 30), (100_000, 100_000)):
        head = Band(HEADS, DIM, width, num_pos).double()
        with LargestTensor() as mode:
            out = head.attend(v, layout, q, k)
        largest.append(mode.largest)
        inside = layout.inside
        torch.testing.assert_close(out[inside], dense(head, layout, v, q, k)[inside])
    assert largest[0] == largest[1]


@pytest.mark.parametrize("options", [{}, {"band_projection": "exact"}, {"band_epsilon": 0.1}])
def test_half_precision_products_do_not_overflow(options):
    # 64 · 35 · 35 lies beyond float16, the score, an eighth of it, does not
    head = Band(1, 64, 2, 1, **options)
    layout = make_layout([6])
    v, q, k = (torch.full((6, 1, 64), x, dtype=torch.float16) for x in (1.0, 35.0, 35.0))
    assert torch.isfinite(head.attend(v, layout, q, k)).all()


def test_dropout_in_training_alone():
    layout = make_layout([20])
    v, q, k = draw(layout)
    for options in ({}, {"band_epsilon": 0.1}):
        head = Band(HEADS, DIM, 2, 1, dropout=0.5, **options)
        assert not torch.equal(head.attend(v, layout, q, k), head.attend(v, layout, q, k))
        head.eval()
        assert torch.equal(head.attend(v, layout, q, k), head.attend(v, layout, q, k))


def test_the_exact_projection_cuts_the_band_out_of_any_matrix():
    # the best approximation by a band matrix is the matrix with zeros outside (thesis)
    heads = torch.rand(8, 16, 16, dtype=torch.float64)
    position = torch.arange(16)
    outside = (position[:, None] - position[None, :]).abs() > 3
    layout = make_layout([16])
    # with n = head_dim and one-hot keys, queries are any scores wanted
    wide = Band(1, 16, 3, band_projection="exact")
    for matrix in heads:
        rows = matrix / matrix.sum(-1, keepdim=True)
        q = (rows.log() * 4)[:, None, :]  # √16 = 4 cancels the scaling
        k = torch.eye(16, dtype=torch.float64)[:, None, :]
        cut = wide.weights(layout, q, k, torch.float64)[0, 0]
        torch.testing.assert_close(cut, rows.masked_fill(outside, 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"band_projection": "nearest"}, "band_projection is 'nearest'"),
        ({"band_sparse": "length"}, "band_sparse is 'length'"),
        ({"band_epsilon": 1.5}, r"band_epsilon is 1\.5"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Band(1, 1, 1, **options)


def test_needs_counts_only_for_rare_tokens():
    assert Band(1, 1, 2, 1).needs == {"rarity"}
    assert Band(1, 1, 2, 1, band_sparse="norm").needs == frozenset()
    assert Band(1, 1, 2).needs == frozenset()


@pytest.mark.parametrize("tisa_kernels", [0, 2])
@pytest.mark.parametrize("width", [0, 5, 40])
@pytest.mark.parametrize("lengths", [[200, 200], [200, 131, 70]])
@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_of_windows_are_those_of_the_definition(side, lengths, width, tisa_kernels):
    # long enough for inner blocks, whose windows overlap: gradcheck would take minutes here
    head = Band(HEADS, DIM, width, tisa_kernels=tisa_kernels).double()
    layout = make_layout(lengths, side)
    given = [t.requires_grad_() for t in draw(layout)]
    wanted = [*given, *head.parameters()]
    grad = torch.randn_like(given[0]) * layout.inside[:, :, None]
    fast = torch.autograd.grad(head.attend(given[0], layout, *given[1:]), wanted, grad)
    slow = torch.autograd.grad(dense(head, layout, *given), wanted, grad)
    torch.testing.assert_close(fast, slow)


def test_windows_are_views():
    x = torch.randn(200, 4, DIM)
    for window in _Windows.apply(x, 5, 32, 4):
        assert window.data_ptr() >= x.data_ptr()
        assert window.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
