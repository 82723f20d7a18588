import argparse

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from omegaconf import OmegaConf, open_dict

from fairseq_fixed.attention import MixedHeadAttention
from fairseq_fixed.heads import HeadsError, format_heads
from tests.unit.models.models_common import PAD, build, encode, options, task, tokens

ARCHITECTURES = [a for a in ARCH_MODEL_REGISTRY if a.startswith("fixed_transformer")]

# every option of fairseq's transformer that touches an encoder
ENCODER_OPTIONS = {
    "plain": [],
    "prenorm": ["--encoder-normalize-before"],
    "learned positions": ["--encoder-learned-pos"],
    "no positions": ["--no-token-positional-embeddings"],
    "layernorm embedding": ["--layernorm-embedding"],
    "no scale": ["--no-scale-embedding"],
    "shared embeddings": ["--share-all-embeddings"],
    "gelu": ["--activation-fn", "gelu"],
    "dropouts": ["--dropout", "0.3", "--attention-dropout", "0.2", "--activation-dropout", "0.1"],
    "relu dropout": ["--relu-dropout", "0.2"],
    "quant noise": ["--quant-noise-pq", "0.3", "--quant-noise-pq-block-size", "4"],
    "checkpointing": ["--checkpoint-activations"],
    "offloading": ["--offload-activations"],
    "layerdrop": ["--encoder-layerdrop", "0.5"],
    "edge self": ["--fixed-edge", "self"],
    "8f": ["--encoder-heads", "8f"],
    "8l": ["--encoder-heads", "8l"],
    "by layer": ["--encoder-heads", "0@8f/1-2@7f+1l"],
    "words": ["--encoder-heads", "7fw+1l", "--word-boundaries", "tokens"],
    "tisa": ["--encoder-heads", "8l", "--tisa-kernels", "5"],
    "tisa, shared": ["--encoder-heads", "7f+1l", "--tisa-kernels", "3", "--tisa-shared"],
    "tisa, no positions": [
        *("--encoder-heads", "8l", "--tisa-kernels", "5", "--no-encoder-positional-embeddings"),
    ],
    "band": ["--encoder-heads", "8xband:3", "--attention-dropout", "0.1"],
    "band, tisa": ["--encoder-heads", "8xband:3:2", "--tisa-kernels", "5"],
    "band, exact": ["--encoder-heads", "4xband:3:1+4l", "--band-projection", "exact"],
    "band, norm": ["--encoder-heads", "8xband:3:2", "--band-sparse", "norm"],
    "band, clipped": ["--encoder-heads", "8xband:3:2", "--band-epsilon", "0.1"],
    "ablation": ["--encoder-heads", "7f-previous+1l"],
    "off": ["--encoder-heads", "8xoff"],
}


@pytest.mark.parametrize("flags", ENCODER_OPTIONS.values(), ids=ENCODER_OPTIONS)
def test_every_option_trains_and_evaluates(flags):
    model = build(*flags)
    src = tokens([7, 12, 3])
    target = tokens([6, 9, 4], "right")
    model.train()
    out, _ = model(src, src.ne(PAD).sum(1), target)
    out.sum().backward()
    grads = [p.grad for p in model.encoder.parameters() if p.grad is not None]
    assert grads
    assert all(torch.isfinite(g).all() for g in grads)
    model.eval()
    assert torch.equal(encode(model, src), encode(model, src))


@pytest.mark.parametrize("flags", ENCODER_OPTIONS.values(), ids=ENCODER_OPTIONS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_encoding_depends_on_the_sentence_alone(flags, side):
    model = build(*flags).eval()
    with torch.no_grad():
        for length in (1, 2, 3, 17, 80):
            alone = tokens([length])
            expected = encode(model, alone)[:, 0]
            for batch, n in (([length, 5], max(length, 5)), ([length, 90, 1, 33], 90)):
                src = tokens(batch, side, n)
                rows = slice(n - length, n) if side == "left" else slice(0, length)
                src[0, rows] = alone[0]
                together = encode(model, src)[rows, 0]
                torch.testing.assert_close(together, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("flags", [[], ["--encoder-normalize-before"], ["--layernorm-embedding"]])
@pytest.mark.parametrize("side", ["left", "right"])
def test_8l_is_fairseqs_own_encoder(flags, side):
    sizes = ["--encoder-embed-dim", "64", "--encoder-ffn-embed-dim", "128", "--encoder-layers", "3"]
    shape = [*sizes, "--encoder-attention-heads", "8", "--decoder-layers", "1", *flags]
    vanilla = build(*shape, arch="transformer").eval()
    ours = build(*shape, "--encoder-heads", "8l", arch="fixed_transformer").eval()
    ours.load_state_dict(vanilla.state_dict(), strict=True)
    src = tokens([11, 40, 2, 1], side)
    real = src.ne(PAD).t()
    expected = vanilla.encoder(src, src.ne(PAD).sum(1), return_all_hiddens=True)
    actual = ours.encoder(src, src.ne(PAD).sum(1), return_all_hiddens=True)
    assert expected.keys() <= actual.keys()
    assert len(expected["encoder_states"]) == len(actual["encoder_states"]) == 4
    for key in ("encoder_padding_mask", "encoder_embedding", "src_lengths"):
        torch.testing.assert_close(actual[key][0], expected[key][0])
    pairs = [*zip(actual["encoder_states"], expected["encoder_states"], strict=True)]
    pairs.append((actual["encoder_out"][0], expected["encoder_out"][0]))
    for a, e in pairs:
        torch.testing.assert_close(a[real], e[real], rtol=1e-5, atol=1e-5)
    # and through the decoder, training mode without dropout, gradients included
    target = tokens([6, 9, 4, 3], "right")
    grads = []
    for model in (ours, vanilla):
        model.train()
        for module in model.modules():
            if hasattr(module, "p"):
                module.p = 0.0
        model(src, None, target)[0][target.ne(PAD)].pow(2).sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], rtol=1e-3, atol=1e-4)


def test_fixed_heads_add_no_parameters():
    def count(heads: str) -> int:
        return sum(p.numel() for p in build("--encoder-heads", heads).encoder.parameters())

    d, head_dim, layers = 128, 16, 3
    per_learned_head = 2 * (d * head_dim + head_dim)  # rows of the query and key projections
    assert count("8l") - count("7f+1l") == layers * 7 * per_learned_head
    assert count("7f+1l") - count("8f") == layers * per_learned_head
    assert count("8f") == count("current+7xlast")


def test_heads_by_layer_are_built_in_order():
    model = build("--encoder-heads", "0@8f/1@8l/2@7f+1l")
    layers = [layer.self_attn for layer in model.encoder.layers]
    assert [layer.scored_dim // layer.head_dim for layer in layers] == [0, 8, 1]
    specs = tuple(layer.specs for layer in layers)
    assert format_heads(specs).startswith("0@current+")


def test_layers_to_keep_name_layers_as_built():
    trained = build("--encoder-heads", "0@8f/1@8l/2@7f+1l")
    args = options("--encoder-heads", "0@8f/1@8l/2@7f+1l", "--encoder-layers-to-keep", "0,2")
    pruned = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task())
    assert [m.scored_dim for m in pruned.modules() if isinstance(m, MixedHeadAttention)] == [0, 16]
    pruned.load_state_dict(trained.state_dict(), strict=True, model_cfg=args)
    for built, kept in ((0, 0), (2, 1)):
        for name, value in trained.encoder.layers[built].state_dict().items():
            assert torch.equal(value, pruned.encoder.layers[kept].state_dict()[name])
    # what would be saved from here on describes the pruned model
    again = ARCH_MODEL_REGISTRY[args.arch].build_model(args, task())
    again.load_state_dict(pruned.state_dict(), strict=True, model_cfg=args)


def test_layerdrop_drops_whole_layers_in_training_alone():
    model = build("--encoder-layerdrop", "0.5", "--dropout", "0", "--encoder-layers", "3")
    src = tokens([9])
    model.train()
    outs = {tuple(encode(model, src)[0, 0, :2].tolist()) for _ in range(20)}
    assert 1 < len(outs) <= 8  # subsets of three layers
    model.eval()
    assert torch.equal(encode(model, src), encode(model, src))


def test_checkpointing_changes_no_gradient():
    plain, saving = build("--dropout", "0"), build("--dropout", "0", "--checkpoint-activations")
    saving.load_state_dict(plain.state_dict())
    src = tokens([9, 4])
    for model in (plain, saving):
        model.train()
        encode(model, src)[src.ne(PAD).t()].pow(2).sum().backward()
    for (name, a), (_, b) in zip(
        plain.encoder.named_parameters(), saving.encoder.named_parameters(), strict=True
    ):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


def test_attention_dropout_does_not_touch_fixed_heads():
    model = build("--encoder-heads", "8f", "--attention-dropout", "0.5", "--dropout", "0").train()
    src = tokens([9, 4])
    assert torch.equal(encode(model, src), encode(model, src))


def test_reordering_for_beam_search():
    model = build().eval()
    src = tokens([5, 3])
    out = model.encoder(src, None, return_all_hiddens=True)
    expected = out["encoder_out"][0][:, [1, 1, 0]]
    reordered = model.encoder.reorder_encoder_out(out, torch.tensor([1, 1, 0]))
    assert torch.equal(reordered["encoder_out"][0], expected)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_architectures_build(arch):
    # thin layers keep the big ones quick; heads and shapes are the architecture's
    model = build("--encoder-ffn-embed-dim", "8", "--decoder-layers", "1", arch=arch)
    heads = {layer.self_attn.num_heads for layer in model.encoder.layers}
    assert heads == {16 if arch.endswith("big") else 8}


def test_architecture_sizes():
    args = options(arch="fixed_transformer")
    assert (args.encoder_layers, args.decoder_layers) == (6, 6)
    assert (args.encoder_embed_dim, args.encoder_ffn_embed_dim) == (512, 2048)
    args = options(arch="fixed_transformer_iwslt_de_en")
    assert (args.encoder_ffn_embed_dim, args.encoder_attention_heads) == (1024, 8)
    assert options("--dropout", "0.4", arch="fixed_transformer_wmt_en_de_big").dropout == 0.4


def hydra_model(**values):
    """What Hydra hands to fairseq's build_model, as that function prepares it."""
    cfg = OmegaConf.create({"_name": "fixed_transformer_tiny", **values})
    OmegaConf.set_struct(cfg, True)
    with open_dict(cfg):
        ARCH_CONFIG_REGISTRY["fixed_transformer_tiny"](cfg)
    return cfg


def test_a_mix_set_through_hydra_arrives():
    cfg = hydra_model(encoder_heads="0-1@8f/2@8l", fixed_edge="clamp")
    model = ARCH_MODEL_REGISTRY["fixed_transformer_tiny"].build_model(cfg, task())
    assert [layer.self_attn.scored_dim for layer in model.encoder.layers] == [0, 0, 128]
    assert {run.edge for run in model.encoder.layers[0].self_attn.runs} == {"clamp"}


def test_hydra_pruning_is_what_gets_saved():
    cfg = hydra_model(encoder_heads="0-1@8f/2@8l", encoder_layers_to_keep="1,2")
    ARCH_MODEL_REGISTRY["fixed_transformer_tiny"].build_model(cfg, task())
    assert cfg.encoder_layers == 2
    assert cfg.encoder_heads.startswith("0@current")
    assert cfg.encoder_heads.endswith("/1@8xlearned")


def test_a_misspelt_hydra_option_is_refused():
    cfg = hydra_model(encoder_head="8l")
    with pytest.raises(ValueError, match=r"model\.encoder_head .*model\.encoder_heads"):
        ARCH_MODEL_REGISTRY["fixed_transformer_tiny"].build_model(cfg, task())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--encoder-heads", "7f"], "7 heads.*has 8"),
        (["--encoder-heads", "7f+1x"], "1x"),
        (["--encoder-embed-dim", "100", "--decoder-embed-dim", "100"], "100 is not divisible by 8"),
        (["--encoder-heads", "0-3@8l"], "0-3"),
        (["--encoder-layers-to-keep", "0,7"], "7"),
    ],
)
def test_heads_that_do_not_fit(flags, message):
    with pytest.raises(HeadsError, match=message):
        build(*flags)


def test_unknown_edge_and_foreign_attention():
    args = options()
    args.fixed_edge = "wrap"
    with pytest.raises(ValueError, match="fixed_edge is 'wrap'"):
        ARCH_MODEL_REGISTRY[args.arch].build_model(args, task())
    with pytest.raises(ValueError, match="xformers"):
        build("--encoder-xformers-att-config", "{}")


def test_options_of_an_older_checkpoint_get_defaults():
    args = options()
    for name in ("fixed_edge", "encoder_heads"):
        delattr(args, name)
    model = ARCH_MODEL_REGISTRY[args.arch].build_model(argparse.Namespace(**vars(args)), task())
    assert model.encoder.layers[0].self_attn.scored_dim == 16


def test_tisa_parameters():
    def names(*flags):
        return {n for n, _ in build(*flags).named_parameters() if "tisa" in n}

    assert not names("--encoder-heads", "8f", "--tisa-kernels", "5")
    assert len(names("--encoder-heads", "8l", "--tisa-kernels", "5")) == 3 * 3
    shared = build("--encoder-heads", "7f+1l", "--tisa-kernels", "5", "--tisa-shared")
    assert len({p for n, p in shared.named_parameters() if "tisa" in n}) == 3
    again = build("--encoder-heads", "7f+1l", "--tisa-kernels", "5", "--tisa-shared")
    again.load_state_dict(shared.state_dict(), strict=True)
    with pytest.raises(HeadsError, match="--tisa-shared"):
        build("--encoder-heads", "0@8f/1-2@8l", "--tisa-kernels", "5", "--tisa-shared")


def test_positions_can_go_from_the_encoder_alone():
    model = build("--encoder-heads", "8l", "--no-encoder-positional-embeddings").eval()
    assert model.encoder.embed_positions is None
    assert model.decoder.embed_positions is not None
    src = torch.tensor([[5, 6, 7, 2]])
    swapped = torch.tensor([[6, 5, 7, 2]])
    # without positions or a bias a learned head does not know the order of the tokens
    torch.testing.assert_close(encode(model, src)[0], encode(model, swapped)[1])
    biased = build(
        *("--encoder-heads", "8l", "--no-encoder-positional-embeddings", "--tisa-kernels", "5")
    ).eval()
    assert not torch.allclose(encode(biased, src)[0], encode(biased, swapped)[1])
    assert encode(biased, tokens([500])).shape[0] == 500  # longer than any table


def test_ranks_travel_with_the_checkpoint():
    model = build("--encoder-heads", "8xband:2:1")
    state = model.state_dict()
    assert "encoder.vocabulary.rarity_version" in state
    counts = task()
    counts.source_dictionary.count = [1] * len(counts.source_dictionary)
    other = build("--encoder-heads", "8xband:2:1", a_task=counts)
    other.load_state_dict(state, strict=True)
    src = tokens([9, 5])
    assert torch.equal(encode(model.eval(), src), encode(other.eval(), src))
    # under the name that it had at first, too
    state["encoder.vocabulary.rarity"] = state.pop("encoder.vocabulary.rarity_version")
    again = build("--encoder-heads", "8xband:2:1", a_task=counts)
    again.load_state_dict(state, strict=True)
    assert torch.equal(encode(model, src), encode(again.eval(), src))


def test_names_of_languages_are_no_rare_tokens():
    a_task = task()
    for symbol in ("__de__", "[de_DE]", "<mask>", "__it"):
        a_task.source_dictionary.add_symbol(symbol)
    vocabulary = build("--encoder-heads", "8xrare:1:3", a_task=a_task).encoder.vocabulary
    *tags, word = range(len(a_task.source_dictionary) - 4, len(a_task.source_dictionary))
    assert vocabulary.rarity[tags].tolist() == [-1] * 3
    assert vocabulary.rarity[word] == 1  # the rarest but <unk>


def joint(state):
    """Return a state as very old checkpoints hold it: one projection in the place of three."""
    old = {}
    for key, tensor in state.items():
        for part in ("weight", "bias"):
            if key.endswith(f".self_attn.q_proj.{part}"):
                names = [key.replace("q_proj", f"{letter}_proj") for letter in "qkv"]
                new = key.replace(f"q_proj.{part}", f"in_proj_{part}")
                old[new] = torch.cat([state[name] for name in names])
        if not any(f".self_attn.{letter}_proj." in key for letter in "qkv"):
            old[key] = tensor
    return old


def test_very_old_checkpoints_with_one_projection_for_three():
    for flags in (("--encoder-heads", "8l"), ("--encoder-heads", "8l", "--decoder-heads", "8l")):
        flags = (*flags, "--decoder-attention-heads", "8")
        new, loaded = build(*flags).eval(), build(*flags).eval()
        old = joint(new.state_dict())
        assert "encoder.layers.0.self_attn.in_proj_weight" in old
        loaded.load_state_dict(old, strict=True)
        src, previous = tokens([5, 9]), tokens([4, 7], "right")
        lengths = src.ne(PAD).sum(1)
        assert torch.equal(new(src, lengths, previous)[0], loaded(src, lengths, previous)[0])


def test_a_dictionary_without_word_marks():
    with pytest.raises(ValueError, match="--word-boundaries tokens"):
        build("--encoder-heads", "7fw+1l")


def test_fine_tuning_between_mixes_whose_weights_agree():
    learned, band = build("--encoder-heads", "8l"), build("--encoder-heads", "8xband:3:2")
    rarity = band.encoder.vocabulary.rarity.clone()
    band.load_state_dict(learned.state_dict(), strict=True)
    assert torch.equal(band.encoder.vocabulary.rarity, rarity)
    learned.load_state_dict(band.state_dict(), strict=True)


def test_layers_of_their_own_do_not_load_as_shared():
    flags = ["--encoder-heads", "8l", "--tisa-kernels", "5"]
    with pytest.raises(HeadsError, match="without --tisa-shared"):
        build(*flags, "--tisa-shared").load_state_dict(build(*flags).state_dict())
    build(*flags).load_state_dict(build(*flags, "--tisa-shared").state_dict())


def test_tisa_without_a_scored_head_is_said(caplog):
    build("--encoder-heads", "8f", "--tisa-kernels", "5")
    assert "does nothing" in caplog.text
    caplog.clear()
    build("--encoder-heads", "8l", "--tisa-kernels", "5")
    assert "does nothing" not in caplog.text


def test_a_model_trained_with_layers_to_keep_loads_again():
    flags = ("--encoder-heads", "0@8f/1@8l/2@7f+1l", "--encoder-layers-to-keep", "0,2")
    saved = options(*flags)
    trained = ARCH_MODEL_REGISTRY[saved.arch].build_model(saved, task())
    again = ARCH_MODEL_REGISTRY[saved.arch].build_model(saved, task())
    again.load_state_dict(trained.state_dict(), strict=True, model_cfg=saved)


@pytest.mark.parametrize("heads", ["8l", "8xband:2", "8xrandom", "8xalibi", "8xsyntactic:2"])
def test_retained_dropout(heads):
    model = build("--encoder-heads", heads, "--attention-dropout", "0.5", "--dropout", "0").eval()
    src = tokens([9, 4])
    assert torch.equal(encode(model, src), encode(model, src))
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=["MultiheadAttention"])
    assert not torch.equal(encode(model, src), encode(model, src))


@pytest.mark.parametrize("side", ["Encoder", "Decoder"])
def test_retained_dropout_by_the_names_of_fairseqs_modules(side):
    flags = ("--decoder-heads", "8l", "--decoder-attention-heads", "8", "--dropout", "0.5")
    model = build("--encoder-heads", "8f", *flags).eval()
    vanilla = build("--dropout", "0.5", arch="transformer_tiny").eval()
    names = [f"Transformer{side}", f"Transformer{side}LayerBase"]
    for each in (model, vanilla):
        each.make_generation_fast_(retain_dropout=True, retain_dropout_modules=names)
    ours, theirs = (
        {
            (name.split(".")[0], module.module_name)
            for name, module in each.named_modules()
            if getattr(module, "apply_during_inference", False)
        }
        for each in (model, vanilla)
    )
    assert ours == theirs == {(side.lower(), name) for name in names}
