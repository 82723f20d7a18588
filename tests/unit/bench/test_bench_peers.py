"""The contenders compute what they are said to."""

import argparse

import pytest
import torch
from fairseq.models.lightconv import LightConvEncoderLayer
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

from fairseq_fixed.bench.batches import Batch, make_tokens
from fairseq_fixed.bench.check import check_equal
from fairseq_fixed.bench.errors import BenchError, UnavailableError
from fairseq_fixed.bench.peers.base import PAD, padding_mask
from fairseq_fixed.bench.peers.dense import Dense
from fairseq_fixed.bench.peers.fairseq_attention import FairseqAttention
from fairseq_fixed.bench.peers.lightconv import KERNELS, LightConv
from fairseq_fixed.bench.peers.local import Local
from fairseq_fixed.bench.peers.mixed import VOCABULARY, Mixed
from fairseq_fixed.bench.peers.sdpa import SdpaAttention
from fairseq_fixed.bench.peers.torch_attention import TorchAttention
from fairseq_fixed.bench.peers.weights import Projections
from fairseq_fixed.heads import parse_mix

D, HEADS = 32, 8
WEIGHTS = Projections.draw(D, 0)


def make_batch(lengths, side="left", dtype=torch.float64) -> Batch:
    return Batch(make_tokens(lengths, side, VOCABULARY, 1), 1, D, dtype, 1)


def hold(reference, other, batch, function="the same"):
    layers = {"reference": reference.double(), "other": other.double()}
    check_equal("reference", {"other": function}, layers, batch)


BATCHES = [
    make_batch([9, 6, 1], "left"),
    make_batch([9, 6, 1], "right"),
    make_batch([8, 8]),
    make_batch([1]),
    make_batch([40, 33]),
]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("peer", [SdpaAttention, TorchAttention])
def test_learned_peers_equal_fairseqs(peer, batch):
    hold(FairseqAttention(WEIGHTS, D, HEADS, 0.1), peer(WEIGHTS, D, HEADS, 0.1), batch)


@pytest.mark.parametrize("batch", BATCHES)
def test_ours_all_learned_equals_fairseqs(batch):
    ours = Mixed(parse_mix("8l"), WEIGHTS, D, 0.1)
    hold(FairseqAttention(WEIGHTS, D, HEADS, 0.1), ours, batch)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    "mix",
    [
        "7f+1l",
        "8f",
        "8xband:2",
        "8l",
        "previous+learned+band:1+end+2xband:3+start+learned",
        "7fw+1l",
        "4xrare:2:3+4xgaussian:-1:1",
        "8xsyntactic:2",
        "6xcurrent+2xoff",
    ],
)
def test_dense_equals_ours(mix, batch):
    specs = parse_mix(mix)
    hold(Mixed(specs, WEIGHTS, D, 0.1), Dense(specs, WEIGHTS, D, 0.1), batch)


@pytest.mark.parametrize("mix", ["8xrandom", "8xalibi", "7xband:2+band:2:3"])
def test_dense_says_what_it_lacks(mix):
    with pytest.raises(UnavailableError, match="no dense implementation"):
        Dense(parse_mix(mix), WEIGHTS, D, 0.0)


@pytest.mark.parametrize("batch", [*BATCHES, make_batch([12, 12]), make_batch([13, 13])])
@pytest.mark.parametrize("width", [1, 3, 4, 50])
def test_local_attention_is_the_band(width, batch):
    pytest.importorskip("local_attention")
    specs = parse_mix(f"8xband:{width}")
    hold(Mixed(specs, WEIGHTS, D, 0.0), Local(specs, WEIGHTS, D, 0.0), batch)


def test_local_attention_without_the_mask_would_attend_to_its_own_padding():
    pytest.importorskip("local_attention")

    class Maskless(Local):
        def prepare(self, tokens):
            return None

    specs = parse_mix("8xband:4")
    with pytest.raises(BenchError, match="differ"):
        hold(Mixed(specs, WEIGHTS, D, 0.0), Maskless(specs, WEIGHTS, D, 0.0), make_batch([13, 13]))


@pytest.mark.parametrize("mix", ["7f+1l", "4xband:2+4xband:3", "8xband:0", "8xband:2:1"])
def test_local_attention_has_one_band_alone(mix):
    with pytest.raises(UnavailableError, match="one band"):
        Local(parse_mix(mix), WEIGHTS, D, 0.0)


@pytest.mark.parametrize("lengths", [[5, 5], [5, 3]])
def test_fairseqs_attention_is_called_as_its_encoder_layer_calls_it(lengths):
    config = TransformerConfig()
    config.encoder.embed_dim, config.encoder.attention_heads = D, HEADS
    config.encoder.ffn_embed_dim = D
    layer = TransformerEncoderLayerBase(config)
    peer = FairseqAttention(WEIGHTS, D, HEADS, 0.0)
    calls = []
    for module in (layer.self_attn, peer.attention):
        module.register_forward_pre_hook(
            lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
        )
    batch = make_batch(lengths, dtype=torch.float32)
    x = batch.inputs(False)[0]
    # what TransformerEncoderBase.forward_scriptable hands to its layers
    mask = batch.tokens.eq(PAD)
    layer(x, encoder_padding_mask=mask if mask.any() else None)
    peer(x, peer.prepare(batch.tokens))
    (their_args, theirs), (my_args, mine) = calls
    assert len(their_args) == len(my_args) == 0
    assert set(theirs) == set(mine)
    for name, value in theirs.items():
        same = (
            torch.equal(mine[name], value)
            if isinstance(value, torch.Tensor)
            else (mine[name] == value)
        )
        assert same, name


@pytest.mark.parametrize("lengths", [[40, 40], [40, 12]])
@pytest.mark.parametrize("layer", [0, 2, 5])
def test_lightconv_is_the_sublayer_of_fairseqs_layer(layer, lengths):
    args = argparse.Namespace(
        encoder_embed_dim=D,
        encoder_conv_dim=D,
        encoder_glu=False,
        encoder_conv_type="lightweight",
        weight_softmax=True,
        encoder_attention_heads=HEADS,
        weight_dropout=0.0,
        dropout=0.0,
        relu_dropout=0.0,
        input_dropout=0.0,
        encoder_normalize_before=False,
        encoder_ffn_embed_dim=D,
    )
    theirs = LightConvEncoderLayer(args, kernel_size=KERNELS[layer])
    mine = LightConv(D, HEADS, 0.0, layer)
    for name in ("linear1", "conv", "linear2"):
        getattr(theirs, name).load_state_dict(getattr(mine, name).state_dict())
    batch = make_batch(lengths, dtype=torch.float32)
    x = batch.inputs(False)[0].detach()
    inside = []
    theirs.layer_norm1.register_forward_pre_hook(lambda _, args: inside.append(args[0]))
    theirs(x, padding_mask(batch.tokens))
    expected = inside[0] - x  # the residual is added before the norm
    torch.testing.assert_close(mine(x, mine.prepare(batch.tokens)), expected, atol=1e-5, rtol=1e-5)


def test_attention_dropout_works_in_training_alone():
    batch = make_batch([9, 6], dtype=torch.float32)
    specs = parse_mix("8xband:2")
    for peer in (
        FairseqAttention(WEIGHTS, D, HEADS, 0.5),
        SdpaAttention(WEIGHTS, D, HEADS, 0.5),
        TorchAttention(WEIGHTS, D, HEADS, 0.5),
        LightConv(D, HEADS, 0.5, 0),
        Dense(specs, WEIGHTS, D, 0.5),
        Mixed(specs, WEIGHTS, D, 0.5),
    ):
        x, prepared = batch.inputs(peer.batch_first)[0], peer.prepare(batch.tokens)
        runs = {}
        for training in (True, False):
            peer.train(training)
            first, second = (peer(x, prepared) for _ in range(2))
            real = batch.tokens.ne(PAD)
            if not peer.batch_first:
                real = real.t()
            runs[training] = torch.equal(first[real], second[real])
        assert runs == {True: False, False: True}, type(peer)


def test_a_broken_contender_is_found():
    class Broken(SdpaAttention):
        def forward(self, x, prepared):
            return super().forward(x, None)  # attends to padding

    reference = FairseqAttention(WEIGHTS, D, HEADS, 0.0)
    broken = Broken(WEIGHTS, D, HEADS, 0.0)
    hold(reference, broken, make_batch([7, 7]))
    with pytest.raises(BenchError, match=r"other and reference are to compute the same.*output"):
        hold(reference, broken, make_batch([7, 2]))


def test_a_wrong_gradient_is_found():
    class Detached(SdpaAttention):
        def forward(self, x, prepared):
            return super().forward(x.detach(), prepared) + 0 * x

    with pytest.raises(BenchError, match="gradients differ"):
        hold(
            FairseqAttention(WEIGHTS, D, HEADS, 0.0),
            Detached(WEIGHTS, D, HEADS, 0.0),
            make_batch([7, 2]),
        )


def test_nan_is_a_difference():
    class Infinite(SdpaAttention):
        def forward(self, x, prepared):
            return super().forward(x, prepared) * float("nan")

    with pytest.raises(BenchError, match="differ by nan"):
        hold(
            FairseqAttention(WEIGHTS, D, HEADS, 0.0),
            Infinite(WEIGHTS, D, HEADS, 0.0),
            make_batch([7, 2]),
        )


def test_checking_leaves_training_mode_as_it_was():
    layers = {name: FairseqAttention(WEIGHTS, D, HEADS, 0.1).double() for name in "ab"}
    layers["a"].eval()
    check_equal("a", {"b": "the same"}, layers, BATCHES[0])
    assert not layers["a"].training
    assert layers["b"].training
