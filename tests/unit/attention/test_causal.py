"""Heads of a decoder: definition = operator = steps, whatever the padding, beams and dtype."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_fixed.attention import EDGES, head_class
from fairseq_fixed.attention.causal import CausalAttention, CausalLayout, Step
from fairseq_fixed.attention.causal.recurrent import BLOCK
from fairseq_fixed.attention.causal.slots import FIRST
from fairseq_fixed.heads import KINDS, HeadsError, parse_mix
from fairseq_fixed.layout import SequenceLayout
from tests.conftest import PAD, make_mask

# every causal kind, Gaussians whose edge rows, width or offset differ, and mixes whose families
# are neighbours, interleaved, alone
FIXED = {
    "current": "2xcurrent",
    "previous": "2xprevious",
    "left": "2xleft",
    "first": "2xfirst",
    "start": "2xstart",
    "end": "2xend",
    "off": "2xoff",
    "gaussian": "gaussian:-1:1+gaussian:0:1",
    "gaussian, far": "2xgaussian:-4:0.3",
    "gaussian, wide": "gaussian:-3:9+gaussian:-1:1",
    "gaussian, ahead": "gaussian:1.5:2+gaussian:0:1",
    "fixed together": "current+previous+left+first+start+end+off+gaussian:-1:1",
    "fixed, interleaved": "left+current+previous+left+current+gaussian:0:1",
}
SCORED = {
    "learned": "2xlearned",
    "alibi": "3xalibi",
    "band": "2xband:3",
    "band, own token": "2xband:0",
    "bands": "band:2+band:40+band:2",
    "learned, alibi": "learned+2xalibi+learned",
    "mixed": "2xcurrent+previous+left+learned+alibi+band:4+gaussian:-1:1",
    "interleaved": "learned+left+learned+band:3+left+current+band:3+alibi",
}
MIXES = {**FIXED, **SCORED}
each_mix = pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
each_fixed = pytest.mark.parametrize("mix", FIXED.values(), ids=FIXED)
DIM = 3
LENGTHS = [[1], [2, 1], [3, 5, 4], [31, 7], [33, 32, 1], [80, 81, 66, 2]]


def build(mix: str, **options) -> CausalAttention:
    heads = parse_mix(mix)
    torch.manual_seed(1)
    return CausalAttention(DIM * len(heads), heads, **options).double().eval()


def make_batch(lengths, side, attention, dtype=torch.float64):
    """Tokens (batch, n), inputs (n, batch, channels) and where real tokens are, (n, batch)."""
    n = max(lengths)
    mask = make_mask(lengths, n, side)
    x = torch.randn(n, len(lengths), attention.embed_dim, dtype=dtype)
    return torch.where(mask, PAD, 7), x, ~mask.t()


def definition(attention, x, layout):
    """The dense matrices applied."""
    values = attention._project(x, layout.hidden)[0]
    mixed = torch.einsum("bhij,jbhd->ibhd", attention.weights(x, layout), values)
    return attention.out_proj(mixed.flatten(2))


@torch.no_grad()
def decode(attention, x, tokens, orders=None):
    """Step through whole sentences; `orders[i]` reorders the batch before token i."""
    state, outs = None, []
    for i in range(len(x)):
        if orders is not None and i:
            state = attention.reorder(state, orders[i])
            tokens = tokens[orders[i]]
        step = Step.from_tokens(tokens[:, : i + 1], PAD)
        out, state = attention.step(x[i : i + 1], step, state)
        outs.append(out)
    return torch.cat(outs), state


@each_mix
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("rows", ["renormalized", "density"])
def test_definition_equals_operator_equals_steps(mix, side, edge, rows):
    if rows == "density" and "gaussian" not in mix:
        pytest.skip("no gaussian head")
    attention = build(mix, edge=edge, gaussian_rows=rows)
    for lengths in LENGTHS:
        tokens, x, real = make_batch(lengths, side, attention)
        layout = CausalLayout.from_tokens(tokens, PAD)
        expected = definition(attention, x, layout)[real]
        whole = attention(x, layout)[real]
        torch.testing.assert_close(whole, expected, rtol=1e-9, atol=1e-11)
        steps = decode(attention, x, tokens)[0][real]
        torch.testing.assert_close(steps, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("kind", [k for k in KINDS if KINDS[k].causal and k != "alibi"])
def test_row_i_is_the_encoders_last_row_of_the_prefix(kind, edge):
    spec = {"band": "band:3", "gaussian": "gaussian:-1.5:2"}.get(kind, kind)
    attention = build(spec, edge=edge)
    n = 9
    _, x, _ = make_batch([n], "right", attention)
    rows = attention.weights(x, CausalLayout(None, shape=(1, n)))[0, 0]
    encoder = head_class(kind)
    (parsed,) = parse_mix(spec)
    options = {"edge": edge} if kind in ("gaussian", *FIXED) and kind not in ("off",) else {}
    head = encoder(1, DIM, *parsed.args, **options)
    for i in range(n):
        pair = ()
        if head.scored:
            pair = (attention.q_proj(x[: i + 1]), attention.k_proj(x[: i + 1]))
        prefix = head.weights(SequenceLayout(None, shape=(1, i + 1)), *pair, dtype=torch.float64)
        torch.testing.assert_close(rows[i, : i + 1], prefix[0, 0, i])
        assert (rows[i, i + 1 :] == 0).all()


@each_mix
def test_gradients(mix):
    attention = build(mix)
    tokens, x, real = make_batch([5, 3, 1], "left", attention)
    for layout in (CausalLayout.from_tokens(tokens, PAD), CausalLayout(None, shape=(3, 5))):
        inside = real if layout.padding_mask is not None else torch.ones_like(real)
        x = x.detach().requires_grad_()
        assert torch.autograd.gradcheck(lambda x, at=layout, i=inside: attention(x, at)[i], [x])


@each_mix
def test_steps_have_the_gradients_of_the_whole(mix):
    # who translates with gradients recorded: states are not overwritten then
    attention = build(mix)
    tokens, x, _ = make_batch([7, 7], "right", attention)
    order = torch.tensor([1, 0])
    grads = []
    for stepwise in (False, True):
        given = x.clone().requires_grad_()
        if stepwise:
            state, outs = None, []
            for i in range(7):
                out, state = attention.step(given[i : i + 1], Step(i), state)
                state = attention.reorder(attention.reorder(state, order), order)
                outs.append(out)
            out = torch.cat(outs)
        else:
            out = attention(given, CausalLayout.from_tokens(tokens, PAD))
        (out.square().sum()).backward()
        grads.append(given.grad)
    torch.testing.assert_close(*grads)


@each_mix
@pytest.mark.parametrize("n", [6, 2 * BLOCK + 9])
def test_causality(mix, n):
    attention = build(mix).float()
    x = torch.randn(n, 2, attention.embed_dim)
    layout = CausalLayout(None, shape=(2, n))
    before = attention(x, layout)
    for t in (0, 1, n // 2, n - 1):
        changed = x.clone()
        changed[t:] = torch.randn_like(changed[t:])
        after = attention(changed, layout)
        assert torch.equal(after[:t], before[:t])
        if t == 0 and any(spec.kind != "off" for spec in attention.specs):
            assert not torch.equal(after, before)


def test_a_head_that_looks_ahead_would_be_noticed():
    # the property above fails for a known-unsafe variant: the encoder's own head
    head = head_class("end")(1, DIM)
    x = torch.randn(6, 1, DIM)
    changed = x.clone()
    changed[4:] = 0
    layout = SequenceLayout(None, shape=(1, 6))
    assert not torch.equal(head.attend(x, layout)[:4], head.attend(changed, layout)[:4])


@each_mix
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_sentence_does_not_depend_on_its_batch(mix, side):
    attention = build(mix)
    for length in (1, 2, 40):
        _, x, _ = make_batch([length], side, attention)
        alone = attention(x, CausalLayout(None, shape=(1, length)))[:, 0]
        tokens, others, real = make_batch([length + 9, length, 4], side, attention)
        others[real[:, 1], 1] = x[:, 0]
        together = attention(others * (1 + 99 * ~real[:, :, None]), _layout(tokens))
        torch.testing.assert_close(together[real[:, 1], 1], alone, rtol=1e-9, atol=1e-11)


def _layout(tokens):
    return CausalLayout.from_tokens(tokens, PAD)


@each_mix
def test_padding_in_the_middle_keeps_its_place_and_is_not_attended_to(mix):
    attention = build(mix)
    tokens = torch.full((2, 9), 7)
    tokens[0, :2] = tokens[0, 5] = tokens[1, 3:5] = PAD
    x = torch.randn(9, 2, attention.embed_dim, dtype=torch.float64)
    real = tokens.ne(PAD).t()
    layout = _layout(tokens)
    expected = definition(attention, x, layout)
    torch.testing.assert_close(attention(x, layout)[real], expected[real])
    torch.testing.assert_close(decode(attention, x, tokens)[0][real], expected[real])
    x[~real] += 100
    torch.testing.assert_close(attention(x, layout)[real], expected[real])


@each_mix
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_steps_follow_beams_that_are_reordered_repeated_and_dropped(mix, dtype):
    attention = build(mix).to(dtype)
    n = FIRST + 13
    generator = torch.Generator().manual_seed(3)
    batch, orders, ancestors = 6, [None], torch.arange(6)[None]
    x = torch.randn(n, batch, attention.embed_dim, dtype=dtype)
    inputs = [x[0]]
    for i in range(1, n):
        size = 6 if i < 20 else 4 if i < 40 else 1  # finished sentences leave the batch
        order = torch.randint(ancestors.shape[1], (size,), generator=generator)
        orders.append(order)
        ancestors = torch.cat([ancestors[:, order], torch.arange(size)[None]])
        inputs.append(torch.randn(size, attention.embed_dim, dtype=dtype))
    state, last = None, None
    with torch.no_grad():
        for i in range(n):
            if i:
                state = attention.reorder(state, orders[i])
            last, state = attention.step(inputs[i][None], Step(i), state)
        # each surviving beam's own history, decoded at once
        history = torch.stack([inputs[i][ancestors[i]] for i in range(n)])
        whole = attention(history, CausalLayout(None, shape=(1, n)))
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(last[0], whole[-1], rtol=tolerance, atol=tolerance)


@each_fixed
def test_a_fixed_heads_state_does_not_grow(mix):
    attention = build(mix).float()
    reach = max((getattr(f, "reach", 1) for f in attention.families), default=1)
    sizes, stored = [], []
    state = None
    x = torch.randn(1, 3, attention.embed_dim)
    with torch.no_grad():
        for i in range(reach + 150):
            _, state = attention.step(x, Step(i), state)
            tensors = [t for t in tree_leaves(state) if isinstance(t, torch.Tensor)]
            sizes.append(sum(t.numel() for t in tensors))
            stored.append(sum(t.untyped_storage().nbytes() for t in tensors))
            state = attention.reorder(state, torch.tensor([2, 0, 0]))
    assert len(set(sizes[reach:])) == 1
    assert max(sizes) == sizes[-1]
    assert max(stored) <= 3 * 4 * 3 * attention.embed_dim * max(reach, 6)


@pytest.mark.parametrize("width", [0, 3, 20])
def test_a_bands_state_keeps_as_many_tokens_as_it_sees(width):
    attention = build(f"2xband:{width}")
    x = torch.randn(100, 2, attention.embed_dim, dtype=torch.float64)
    _, state = decode(attention, x, torch.full((2, 100), 7))
    assert state["0"].shape == (2, 2, 2, width + 1, DIM)


class LargestTensor(TorchDispatchMode):
    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize(
    "mix", [*(m for m in FIXED.values() if ":9" not in m), "2xband:3"], ids=str
)
@pytest.mark.parametrize("side", [None, "left"])
def test_no_tensor_of_size_n_by_n(mix, side):
    n = 3000
    attention = build(mix).float()
    attention(torch.randn(n, 1, attention.embed_dim), CausalLayout(None, shape=(1, n)))  # tables
    mask = None if side is None else make_mask([n, n - 7], n, side)
    layout = CausalLayout(mask, shape=(2, n))
    x = torch.randn(n, 2, attention.embed_dim, requires_grad=True)
    with LargestTensor() as mode:
        attention(x, layout).sum().backward()
    assert mode.largest <= 16 * x.numel() * 4 < 2 * n * n


@each_mix
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_finite_and_close_at_length_1000(mix, dtype):
    attention = build(mix)
    x = torch.randn(1000, 2, attention.embed_dim).to(dtype)
    layout = CausalLayout(None, shape=(2, 1000))
    exact = attention(x.double(), layout)
    attention = attention.to(dtype)
    whole, (steps, state) = attention(x, layout), decode(attention, x, torch.full((2, 1000), 7))
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 8e-2, torch.float32: 1e-5}[dtype]
    for out in (whole, steps):
        assert out.dtype == dtype
        assert torch.isfinite(out).all()
        assert (out.double() - exact).abs().max() < tolerance
    for leaf in tree_leaves(state):
        assert not isinstance(leaf, torch.Tensor) or torch.isfinite(leaf).all() or leaf.dim() == 5


@each_mix
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_changes_little(mix, dtype):
    attention = build(mix).float()
    x = torch.randn(300, 2, attention.embed_dim)
    layout = CausalLayout(None, shape=(2, 300))
    plain = attention(x, layout)
    tolerance = 0.02 if dtype == torch.float16 else 0.1
    with torch.autocast("cpu", dtype=dtype):
        assert (attention(x, layout).float() - plain).abs().max() < tolerance
        steps, _ = decode(attention, x, torch.full((2, 300), 7))
        assert (steps.float() - plain).abs().max() < tolerance


def test_what_was_first_used_while_translating_serves_training():
    attention = build("left+gaussian:-1:1+learned+left+alibi+current").float()
    x = torch.randn(40, 2, attention.embed_dim)
    with torch.inference_mode():
        attention(x, CausalLayout(None, shape=(2, 40)))
        decode(attention, x, torch.full((2, 40), 7))
    attention.train()
    attention(x.requires_grad_(), CausalLayout(None, shape=(2, 40))).sum().backward()
    assert torch.isfinite(x.grad).all()


def test_fixed_heads_have_no_parameters_and_project_no_queries():
    d = 8 * DIM
    fixed = build("4xcurrent+2xprevious+gaussian:0:1+left")
    assert fixed.q_proj is None and fixed.k_proj is None
    assert sum(p.numel() for p in fixed.parameters()) == 2 * (d * d + d)
    one = build("4xcurrent+2xprevious+gaussian:0:1+learned")
    assert one.q_proj.weight.shape == one.k_proj.weight.shape == (DIM, d)
    assert set(one.state_dict()) == {
        f"{name}_proj.{part}" for name in "qkv" for part in ("weight", "bias")
    } | {"out_proj.weight", "out_proj.bias"}


def test_projections_without_a_bias_and_layers_that_are_no_plain_projections():
    for mix in ("left+learned+current+learned", "left+current+left"):
        attention = build(mix, bias=False)
        x = torch.randn(9, 2, attention.embed_dim, dtype=torch.float64)
        expected = attention(x, CausalLayout(None, shape=(2, 9)))
        torch.testing.assert_close(decode(attention, x, torch.full((2, 9), 7))[0], expected)
        # with a hook the layers are called one by one, and every step calls it
        calls = []
        attention.v_proj.register_forward_hook(lambda *_, seen=calls: seen.append(1))
        torch.testing.assert_close(decode(attention, x, torch.full((2, 9), 7))[0], expected)
        assert len(calls) == 9


def test_weights_that_changed_between_two_batches_are_seen():
    attention = build("left+learned+current+learned")
    x = torch.randn(9, 2, attention.embed_dim, dtype=torch.float64)
    decode(attention, x, torch.full((2, 9), 7))
    for parameter in attention.parameters():
        parameter.data.mul_(2)  # as fairseq's fp16 optimizer writes them
    expected = attention(x, CausalLayout(None, shape=(2, 9)))
    torch.testing.assert_close(decode(attention, x, torch.full((2, 9), 7))[0], expected)


def test_attention_dropout_touches_learned_weights_alone():
    x = torch.randn(9, 2, 6 * DIM, dtype=torch.float64)
    layout = CausalLayout(None, shape=(2, 9))
    fixed = build("current+previous+left+end+gaussian:0:1+first", dropout=0.5).train()
    assert torch.equal(fixed(x, layout), fixed(x, layout))
    for mix in ("6xlearned", "6xalibi", "6xband:4"):
        learned = build(mix, dropout=0.5)
        assert torch.equal(learned(x, layout), learned(x, layout))
        learned.make_generation_fast_("", True, ["SomethingElse"])
        assert torch.equal(learned(x, layout), learned(x, layout))
        learned.make_generation_fast_("", True, ["MultiheadAttention"])
        assert not torch.equal(learned(x, layout), learned(x, layout))
        tokens = torch.full((2, 9), 7)
        assert not torch.equal(decode(learned, x, tokens)[0], decode(learned, x, tokens)[0])


def test_steps_that_leave_a_token_out_are_refused():
    attention = build("2xprevious")
    x = torch.randn(1, 2, attention.embed_dim, dtype=torch.float64)
    with pytest.raises(ValueError, match="0 were seen, and now comes token 3"):
        attention.step(x, Step(3), None)
    _, state = attention.step(x, Step(0), None)
    with pytest.raises(ValueError, match="1 were seen, and now comes token 0"):
        attention.step(x, Step(0), state)


def test_a_gaussian_that_sees_only_what_is_not_written_is_refused():
    with pytest.raises(HeadsError, match=r"gaussian:9:0\.5.* 7 and more to the right"):
        build("2xgaussian:9:0.5")


def test_a_gaussian_wider_than_any_sentence():
    attention = build("gaussian:-1:1e+06+current".replace("+06", "06"))
    x = torch.randn(50, 2, attention.embed_dim, dtype=torch.float64)
    layout = CausalLayout(None, shape=(2, 50))
    expected = definition(attention, x, layout)
    torch.testing.assert_close(attention(x, layout), expected)
    steps, state = decode(attention, x, torch.full((2, 50), 7))
    torch.testing.assert_close(steps, expected)
    assert state["0"].shape[1] <= 2 * FIRST


@each_mix
def test_a_sentence_of_nothing_but_padding_stays_finite(mix):
    attention = build(mix)
    tokens = torch.full((2, 5), 7)
    tokens[0], tokens[1, 0] = PAD, PAD
    x = torch.randn(5, 2, attention.embed_dim, dtype=torch.float64, requires_grad=True)
    out = attention(x, _layout(tokens))
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(decode(attention, x.detach(), tokens)[0]).all()


def test_every_causal_kind_is_walked():
    walked = {spec.kind for mix in MIXES.values() for spec in parse_mix(mix)}
    assert walked == {kind for kind, info in KINDS.items() if info.causal}
