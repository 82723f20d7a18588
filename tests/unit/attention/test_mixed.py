import pytest
import torch

from fairseq_fixed.attention import MixedHeadAttention
from fairseq_fixed.heads import parse_mix
from tests.conftest import make_layout


def test_projections_are_as_wide_as_needed():
    mixed = MixedHeadAttention(64, parse_mix("7f+1l"))
    assert mixed.q_proj.weight.shape == (8, 64)
    assert mixed.k_proj.weight.shape == (8, 64)
    assert mixed.v_proj.weight.shape == mixed.out_proj.weight.shape == (64, 64)
    fixed = MixedHeadAttention(64, parse_mix("8f"))
    assert fixed.q_proj is None
    assert fixed.k_proj is None
    assert sum(p.numel() for p in fixed.parameters()) == 2 * (64 * 64 + 64)


def test_learned_rows_start_as_in_a_full_matrix():
    torch.manual_seed(1)
    one = MixedHeadAttention(512, parse_mix("7f+1l")).q_proj.weight
    full = MixedHeadAttention(512, parse_mix("8l")).q_proj.weight
    assert one.abs().max() <= (3 / 512) ** 0.5 / 2**0.5
    assert abs(one.std() / full.std() - 1) < 0.02


@pytest.mark.parametrize("mix", ["7f+1l", "1l+7f", "2l+previous+1l+next+2l+last", "8f", "8l"])
def test_dense_weights_give_the_same_output(mix):
    mixed = MixedHeadAttention(32, parse_mix(mix)).double().eval()
    layout = make_layout([6, 9, 1])
    x = torch.randn(9, 3, 32, dtype=torch.float64)
    weights = mixed.weights(x, layout)
    assert weights.shape == (3, 8, 9, 9)
    values = mixed.v_proj(x).view(9, 3, 8, 4)
    joined = torch.einsum("bhij,jbhd->ibhd", weights, values).reshape(9, 3, 32)
    expected = mixed.out_proj(joined)
    inside = layout.inside
    torch.testing.assert_close(mixed(x, layout)[inside], expected[inside])


def test_dropout_touches_learned_heads_alone():
    layout = make_layout([9])
    x = torch.randn(9, 1, 32)
    fixed = MixedHeadAttention(32, parse_mix("8f"), dropout=0.5).train()
    assert torch.equal(fixed(x, layout), fixed(x, layout))
    learned = MixedHeadAttention(32, parse_mix("8l"), dropout=0.5).train()
    assert not torch.equal(learned(x, layout), learned(x, layout))
    assert torch.equal(learned.eval()(x, layout), learned(x, layout))


def test_no_bias():
    mixed = MixedHeadAttention(32, parse_mix("7f+1l"), bias=False)
    assert all(parameter.dim() == 2 for parameter in mixed.parameters())


def test_errors():
    with pytest.raises(ValueError, match="30 is not divisible by 8"):
        MixedHeadAttention(30, parse_mix("8l"))
    with pytest.raises(TypeError, match="tempo"):
        MixedHeadAttention(32, parse_mix("8l"), tempo=3)


def test_layout_work_is_shared_by_layers():
    first, second = (MixedHeadAttention(32, parse_mix("7f+1l")) for _ in range(2))
    layout = make_layout([4, 9])
    x = torch.randn(9, 2, 32)
    first(x, layout)
    before = dict(layout._memo)
    second(x, layout)
    assert layout._memo.keys() == before.keys()
    assert all(layout._memo[key] is before[key] for key in before)
