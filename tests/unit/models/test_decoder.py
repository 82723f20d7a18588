"""`--decoder-heads`: fairseq's decoder with causal heads, at once and token by token."""

import argparse

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.sequence_generator import SequenceGenerator
from omegaconf import OmegaConf, open_dict
from torch.utils._pytree import tree_leaves

from fairseq_fixed.heads import HeadsError
from fairseq_fixed.models import FixedTransformerDecoder
from tests.unit.models.models_common import PAD, build, dictionary, options, task, tokens

HEADS = ["--decoder-attention-heads", "8"]
MIX = "2xcurrent+2xprevious+left+first+2l"
MIXES = {
    "mix": MIX,
    "fixed": "2xcurrent+2xprevious+left+start+end+gaussian:-1:1",
    "hard-coded": "4xgaussian:-1:1+4xgaussian:0:1",
    "band": "8xband:3",
    "alibi": "4xcurrent+4xalibi",
    "learned": "8l",
    "interleaved": "left+learned+current+learned+left+band:2+previous+off",
    "by layer": "0@8xprevious/1@8l/2@7xleft+1l",
}
each_mix = pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)

# every option of fairseq's transformer that touches a decoder
DECODER_OPTIONS = {
    "plain": [],
    "prenorm": ["--decoder-normalize-before"],
    "learned positions": ["--decoder-learned-pos"],
    "no positions": ["--no-token-positional-embeddings"],
    "layernorm embedding": ["--layernorm-embedding"],
    "no scale": ["--no-scale-embedding"],
    "shared embeddings": ["--share-all-embeddings"],
    "shared output": ["--share-decoder-input-output-embed"],
    "gelu": ["--activation-fn", "gelu"],
    "dropouts": ["--dropout", "0.3", "--attention-dropout", "0.2", "--activation-dropout", "0.1"],
    "quant noise": ["--quant-noise-pq", "0.3", "--quant-noise-pq-block-size", "4"],
    "checkpointing": ["--checkpoint-activations"],
    "offloading": ["--offload-activations"],
    "layerdrop": ["--decoder-layerdrop", "0.5"],
    "other width": ["--decoder-embed-dim", "64"],
    "output width": ["--decoder-output-dim", "32"],
    "adaptive softmax": ["--adaptive-softmax-cutoff", "10,20"],
    "no cross-attention": ["--no-cross-attention"],
    "edge self": ["--fixed-edge", "self"],
    "density": ["--gaussian-rows", "density"],
}
each_option = pytest.mark.parametrize("flags", DECODER_OPTIONS.values(), ids=DECODER_OPTIONS)


def decoder_of(*flags: str, mix: str = MIX, **kwargs):
    return build(*HEADS, "--decoder-heads", mix, *flags, **kwargs)


def encoded(model, lengths):
    src = tokens(lengths)
    return model.encoder(src, src.ne(PAD).sum(1))


@torch.no_grad()
def step_through(decoder, prev, encoder_out, orders=None):
    """Decode token by token, (batch, n, vocabulary); `orders[i]` comes before token i."""
    incremental, outs = {}, []
    for i in range(prev.shape[1]):
        if orders is not None and i:
            decoder.reorder_incremental_state_scripting(incremental, orders[i])
            prev = prev[orders[i]]
        out = decoder(prev[:, : i + 1], encoder_out=encoder_out, incremental_state=incremental)[0]
        outs.append(out)
    return torch.cat(outs, dim=1), incremental


@each_option
def test_every_option_trains_and_decodes_token_by_token(flags):
    torch.manual_seed(0)
    model = decoder_of(*flags)
    src, prev = tokens([7, 12, 3]), tokens([6, 9, 4], "right")
    model.train()
    out = model(src, src.ne(PAD).sum(1), prev)[0]
    out.square().sum().backward()
    grads = [p.grad for p in model.decoder.parameters() if p.grad is not None]
    assert grads
    assert all(torch.isfinite(g).all() for g in grads)
    model.eval()
    encoder_out = model.encoder(src, src.ne(PAD).sum(1))
    whole = model.decoder(prev, encoder_out=encoder_out)[0]
    steps, _ = step_through(model.decoder, prev, encoder_out)
    real = prev.ne(PAD)
    torch.testing.assert_close(steps[real], whole[real], rtol=1e-4, atol=1e-5)


@each_mix
@pytest.mark.parametrize("edge", ["zero", "self", "clamp"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_token_by_token_equals_at_once(mix, edge, side, dtype):
    torch.manual_seed(0)
    model = decoder_of("--fixed-edge", edge, mix=mix).to(dtype).eval()
    encoder_out = encoded(model, [9, 5, 7, 1])
    prev = tokens([1, 40, 7, 2], side)
    real = prev.ne(PAD)
    whole = model.decoder(prev, encoder_out=encoder_out)[0][real]
    steps = step_through(model.decoder, prev, encoder_out)[0][real]
    tolerance = 1e-9 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(steps, whole, rtol=tolerance, atol=tolerance)


@each_mix
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("learned", [[], ["--decoder-learned-pos"]])
def test_decoding_depends_on_the_sentence_alone(mix, side, learned):
    torch.manual_seed(0)
    model = decoder_of(*learned, mix=mix).eval()
    src = tokens([6])
    for length in (1, 2, 17, 80):
        alone = tokens([length])
        expected = model(src, None, alone)[0][0]
        for batch, n in (([length, 5], max(length, 5)), ([length, 90, 1, 33], 90)):
            prev = tokens(batch, side, n)
            rows = slice(n - length, n) if side == "left" else slice(0, length)
            prev[0, rows] = alone[0]
            together = model(src.expand(len(batch), -1), None, prev)[0][0, rows]
            torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-4)


@each_mix
def test_a_later_token_changes_nothing_before_it(mix):
    torch.manual_seed(0)
    model = decoder_of(mix=mix).eval()
    src, prev = tokens([6, 6]), tokens([50, 50])
    before = model(src, None, prev)[0]
    for t in (1, 20, 49):
        changed = prev.clone()
        changed[:, t:] = torch.randint(4, 30, changed[:, t:].shape)
        after = model(src, None, changed)[0]
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t:], before[:, t:])


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--decoder-normalize-before"],
        ["--layernorm-embedding"],
        ["--decoder-learned-pos"],
        ["--decoder-embed-dim", "32", "--decoder-output-dim", "16"],
    ],
)
def test_8l_is_fairseqs_own_decoder(flags):
    torch.manual_seed(0)
    shape = [*HEADS, "--decoder-layers", "3", *flags]
    shape += ["--encoder-embed-dim", "64", "--encoder-layers", "1"]
    encoder = ["--encoder-attention-heads", "8", "--encoder-heads", "8l"]
    vanilla = build(*shape, *encoder, arch="fixed_transformer").eval()
    ours = build(*shape, *encoder, "--decoder-heads", "8l", arch="fixed_transformer").eval()
    assert type(vanilla.decoder) is TransformerDecoderBase
    assert type(ours.decoder) is FixedTransformerDecoder
    ours.load_state_dict(vanilla.state_dict(), strict=True)
    encoder_out = encoded(ours, [9, 5, 7])
    for side in ("left", "right"):
        prev = tokens([3, 30, 12], side)
        real = prev.ne(PAD)
        expected, extra = vanilla.decoder(prev, encoder_out=encoder_out)
        actual, more = ours.decoder(prev, encoder_out=encoder_out)
        torch.testing.assert_close(actual[real], expected[real], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            more["attn"][0][real], extra["attn"][0][real], rtol=1e-5, atol=1e-5
        )
        assert len(more["inner_states"]) == len(extra["inner_states"]) == 4
    # fairseq counts padding as tokens where one comes at a time: right padding alone compares
    full = tokens([30, 30, 30])
    orders = [torch.randint(3, (3,)) for _ in range(30)]
    for given, order, seen in ((prev, None, real), (full, orders, full.ne(PAD))):
        expected, actual = (
            step_through(model.decoder, given, encoder_out, order)[0] for model in (vanilla, ours)
        )
        torch.testing.assert_close(actual[seen], expected[seen], rtol=1e-5, atol=1e-5)
    # and in training mode without dropout, gradients included
    grads = []
    for model in (ours, vanilla):
        model.train()
        for module in model.modules():
            if hasattr(module, "p"):
                module.p = 0.0
        model(tokens([5, 5, 5]) * 0 + 7, None, prev)[0][real].pow(2).sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], rtol=1e-3, atol=1e-4)


def test_without_the_option_the_decoder_is_fairseqs():
    model = build()
    assert type(model.decoder) is TransformerDecoderBase
    args = options()
    assert args.decoder_heads == ""
    older = argparse.Namespace(**vars(args))
    del older.decoder_heads
    again = ARCH_MODEL_REGISTRY[args.arch].build_model(older, task())
    assert type(again.decoder) is TransformerDecoderBase
    again.load_state_dict(model.state_dict(), strict=True)


def test_fixed_heads_add_no_parameters():
    def count(mix: str) -> int:
        return sum(p.numel() for p in decoder_of(mix=mix).decoder.parameters())

    d, head_dim, layers = 128, 16, 3
    per_learned_head = 2 * (d * head_dim + head_dim)  # rows of the query and key projections
    assert count("8l") - count("7xleft+1l") == layers * 7 * per_learned_head
    assert count("7xleft+1l") - count("8xprevious") == layers * per_learned_head
    assert count("8xcurrent") == count("2xfirst+2xend+4xgaussian:0:1")


def test_heads_by_layer_are_built_in_order_and_kept_by_their_names():
    mix = "0@8xprevious/1@8l/2@7xleft+1l"
    trained = decoder_of(mix=mix)
    assert [layer.self_attn.scored_dim for layer in trained.decoder.layers] == [0, 128, 16]
    args = options(*HEADS, "--decoder-heads", mix, "--decoder-layers-to-keep", "0,2")
    pruned = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task())
    assert [layer.self_attn.scored_dim for layer in pruned.decoder.layers] == [0, 16]
    assert len(pruned.encoder.layers) == 3
    pruned.load_state_dict(trained.state_dict(), strict=True, model_cfg=args)
    for built, kept in ((0, 0), (2, 1)):
        for name, value in trained.decoder.layers[built].state_dict().items():
            assert torch.equal(value, pruned.decoder.layers[kept].state_dict()[name])
    # what would be saved from here on describes the pruned model
    again = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task())
    again.load_state_dict(pruned.state_dict(), strict=True, model_cfg=args)


def test_both_sides_are_pruned_by_their_own_names():
    args = options(
        *(*HEADS, "--encoder-heads", "0@8f/1-2@8l", "--decoder-heads", "0@8l/1-2@8xleft"),
        *("--encoder-layers-to-keep", "1", "--decoder-layers-to-keep", "0,1"),
    )
    model = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task())
    assert [layer.self_attn.scored_dim for layer in model.encoder.layers] == [128]
    assert [layer.self_attn.scored_dim for layer in model.decoder.layers] == [128, 0]


def hydra_model(**values):
    cfg = OmegaConf.create({"_name": "fixed_transformer_tiny", **values})
    OmegaConf.set_struct(cfg, True)
    with open_dict(cfg):
        ARCH_CONFIG_REGISTRY["fixed_transformer_tiny"](cfg)
    return cfg


def test_a_mix_set_through_hydra_arrives_and_is_saved_pruned():
    cfg = hydra_model(decoder_heads="0@4xleft/1-2@4l", fixed_edge="clamp")
    model = ARCH_MODEL_REGISTRY["fixed_transformer_tiny"].build_model(cfg, task())
    assert [layer.self_attn.scored_dim for layer in model.decoder.layers] == [0, 128, 128]
    assert model.decoder.layers[0].self_attn.families[0].edge == "clamp"
    cfg = hydra_model(decoder_heads="0@4xleft/1-2@4l", decoder_layers_to_keep="0,1")
    ARCH_MODEL_REGISTRY["fixed_transformer_tiny"].build_model(cfg, task())
    assert (cfg.decoder_heads, cfg.decoder_layers) == ("0@4xleft/1@4xlearned", 2)
    with pytest.raises(ValueError, match=r"model\.decoder_head .*model\.decoder_heads"):
        ARCH_MODEL_REGISTRY["fixed_transformer_tiny"].build_model(
            hydra_model(decoder_head="4l"), task()
        )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--decoder-heads", "7f+1l"], r"'next'.*'7f\+1l'.*not written yet"),
        (["--decoder-heads", "4l"], "4 heads.*has 8.*--decoder-attention-heads"),
        (["--decoder-heads", "7l+1lerned"], "1lerned"),
        (["--decoder-heads", "0-3@8l"], "the decoder has 3 layers"),
        (["--decoder-heads", "8xgaussian:9:0.5"], "gaussian:9:0.5"),
        (["--decoder-heads", "8l", "--decoder-embed-dim", "100"], "100 is not divisible by 8"),
        (["--decoder-heads", "8l", "--decoder-layers-to-keep", "0,7"], "7"),
    ],
)
def test_heads_that_do_not_fit(flags, message):
    with pytest.raises(HeadsError, match=message):
        build(*HEADS, *flags)


def test_options_that_replace_the_self_attention():
    with pytest.raises(ValueError, match="--cross-self-attention"):
        decoder_of("--cross-self-attention", "--no-cross-attention")
    with pytest.raises(ValueError, match="xformers"):
        decoder_of("--decoder-xformers-att-config", "{}")
    model = decoder_of().eval()
    with pytest.raises(ValueError, match="full-context-alignment"):
        model.decoder(tokens([4]), encoded(model, [4]), full_context_alignment=True)


def test_checkpointing_changes_no_gradient():
    plain, saving = (
        decoder_of("--dropout", "0"),
        decoder_of("--dropout", "0", "--checkpoint-activations"),
    )
    saving.load_state_dict(plain.state_dict())
    src, prev = tokens([9, 4]), tokens([5, 8], "right")
    for model in (plain, saving):
        model.train()
        model(src, None, prev)[0][prev.ne(PAD)].pow(2).sum().backward()
    for (name, a), (_, b) in zip(plain.named_parameters(), saving.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4, msg=name)


def test_attention_dropout_does_not_touch_fixed_heads():
    flags = ["--attention-dropout", "0.5", "--dropout", "0", "--no-cross-attention"]
    prev = tokens([9, 4], "right")
    model = decoder_of(*flags, mix=MIXES["fixed"]).train()
    one, other = (model.decoder(prev, encoder_out=None)[0] for _ in range(2))
    assert torch.equal(one, other)
    model = decoder_of(*flags, mix=MIXES["mix"]).train()
    assert not torch.equal(*(model.decoder(prev, encoder_out=None)[0] for _ in range(2)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_bears_a_thousand_tokens(dtype):
    model = decoder_of("--max-target-positions", "1100", mix=MIXES["fixed"]).to(dtype).eval()
    encoder_out, prev = encoded(model, [6]), tokens([1000])
    assert torch.isfinite(model.decoder(prev, encoder_out=encoder_out)[0]).all()
    out, incremental = step_through(model.decoder, prev[:, :100], encoder_out)
    assert torch.isfinite(out).all()
    for leaf in tree_leaves(incremental):
        assert not isinstance(leaf, torch.Tensor) or torch.isfinite(leaf).all()


# fairseq's beam search


def generator(models, **kwargs):
    kwargs = {"beam_size": 4, "max_len_a": 0, "max_len_b": 20, **kwargs}
    return SequenceGenerator(models, dictionary(), **kwargs)


def hypotheses(gen, src, **kwargs):
    sample = {"net_input": {"src_tokens": src, "src_lengths": src.ne(PAD).sum(1)}}
    return [
        [(h["tokens"].tolist(), float(h["score"])) for h in beam]
        for beam in gen.generate(None, sample, **kwargs)
    ]


def assert_same(one, other):
    for beam, again in zip(one, other, strict=True):
        assert [t for t, _ in beam] == [t for t, _ in again]
        for (_, score), (_, score_again) in zip(beam, again, strict=True):
            assert abs(score - score_again) < 1e-4


def sharp(model):
    """A model whose beams differ: random weights make all tokens alike."""
    model.decoder.output_projection.weight.data.mul_(3)
    return model.eval()


@each_mix
def test_beam_search_with_states_equals_beam_search_without(mix):
    torch.manual_seed(0)
    model = sharp(decoder_of(mix=mix))
    src = tokens([9, 5, 12, 3])
    for eos in range(4, 30):  # a token that ends sentences at different times
        gen = generator([model], eos=eos)
        found = hypotheses(gen, src)
        if len({len(t) for beam in found for t, _ in beam}) > 3:
            break
    else:
        pytest.fail("all sentences end together")
    gen.model.has_incremental = False  # every step decodes the whole prefix
    assert_same(found, hypotheses(gen, src))
    gen.model.has_incremental = True
    for row, beams in zip(src, found, strict=True):
        row = row[row.ne(PAD)][None]
        assert_same([beams], hypotheses(gen, row))


@pytest.mark.parametrize("mix", [MIXES["mix"], MIXES["fixed"], MIXES["band"]])
def test_forced_prefixes(mix):
    torch.manual_seed(0)
    model = sharp(decoder_of(mix=mix))
    src = tokens([9, 5, 12, 3])
    prefix = torch.tensor([[5, 6, 7], [8, 9, PAD], [4, PAD, PAD], [11, 12, 2]])
    gen = generator([model])
    found = hypotheses(gen, src, prefix_tokens=prefix)
    for row, beam in zip(prefix, found, strict=True):
        forced = row[row.ne(PAD)].tolist()
        assert beam[0][0][: len(forced)] == forced
    gen.model.has_incremental = False
    assert_same([b[:1] for b in found], [b[:1] for b in hypotheses(gen, src, prefix_tokens=prefix)])


def test_ensembles_of_different_decoders():
    torch.manual_seed(0)
    models = [sharp(decoder_of(mix=mix)) for mix in (MIX, MIXES["hard-coded"])]
    models.append(sharp(build(*HEADS)))  # and fairseq's own
    src = tokens([9, 5, 12])
    gen = generator(models)
    found = hypotheses(gen, src)
    gen.model.has_incremental = False
    assert_same(found, hypotheses(gen, src))


def test_memory_does_not_grow_with_what_is_written():
    torch.manual_seed(0)
    model = decoder_of(mix=MIXES["fixed"]).eval()
    encoder_out = encoded(model, [6, 6])
    prev = tokens([120, 120])
    sizes = []
    incremental = {}
    own = {layer.self_attn._incremental_state_id for layer in model.decoder.layers}
    with torch.no_grad():
        for i in range(120):
            model.decoder(prev[:, : i + 1], encoder_out, incremental)
            model.decoder.reorder_incremental_state_scripting(incremental, torch.tensor([1, 0]))
            states = [s for key, s in incremental.items() if key.split(".")[0] in own]
            assert len(states) == 3
            leaves = [t for t in tree_leaves(states) if isinstance(t, torch.Tensor)]
            sizes.append(sum(t.untyped_storage().nbytes() for t in leaves))
    assert len(set(sizes[8:])) == 1


def test_a_token_left_out_is_said():
    model = decoder_of().eval()
    with pytest.raises(ValueError, match="one token a step"):
        model.decoder(tokens([5]), encoded(model, [4]), {})


def test_the_exact_projection_is_the_encoders():
    exact = ("--band-projection", "exact")
    with pytest.raises(HeadsError, match="band heads of a decoder are renormalized"):
        decoder_of(*exact, mix="4xband:2+4l")
    decoder_of(*exact, mix="4xcurrent+4l")
