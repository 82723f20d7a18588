"""A trained model with other heads: what stays the same, and what cannot be."""

import argparse

import pytest
import torch
from models_common import PAD, build, options, task, tokens
from typer.testing import CliRunner

from fairseq_fixed.checkpoints import CheckpointError, load_checkpoint
from fairseq_fixed.cli import app
from fairseq_fixed.conversion import ConversionError, convert_checkpoint
from fairseq_fixed.heads import HeadsError
from fairseq_fixed.models import FixedTransformerModel

SIZES = [
    *("--encoder-layers", "2", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "48"),
    *("--encoder-attention-heads", "8", "--decoder-attention-heads", "8"),
    *("--decoder-layers", "1", "--decoder-embed-dim", "32", "--decoder-ffn-embed-dim", "48"),
]
LENGTHS = [3, 9, 6]


def save(path, *flags, arch="transformer", form="namespace"):
    torch.manual_seed(1)
    args = options(*SIZES, *flags, arch=arch)
    model = build(*SIZES, *flags, arch=arch).eval()
    kept = {**vars(args), "_name": arch}
    torch.save(
        {
            "cfg": {"model": argparse.Namespace(**kept) if form == "namespace" else kept},
            "args": None,
            "model": model.state_dict(),
            "last_optimizer_state": {"state": {}},
        },
        path,
    )
    return model


def load(path):
    state = load_checkpoint(path)
    model = FixedTransformerModel.build_model(state["cfg"]["model"], task()).eval()
    model.load_state_dict(state["model"], strict=True, model_cfg=state["cfg"]["model"])
    return model


def run(model, lengths=LENGTHS):
    torch.manual_seed(2)
    src, previous = tokens(lengths), tokens(lengths, "right")
    return model(src, src.ne(PAD).sum(1), previous)[0], src.ne(PAD), previous.ne(PAD)


def assert_same(one, other):
    (a, _, real), (b, *_) = run(one), run(other)
    torch.testing.assert_close(a[real], b[real], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("form", ["namespace", "dictionary"])
@pytest.mark.parametrize("flags", [[], ["--encoder-normalize-before", "--encoder-learned-pos"]])
def test_all_heads_learned_is_the_same_model(tmp_path, flags, form):
    vanilla = save(tmp_path / "a.pt", *flags, form=form)
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="8l")
    assert_same(vanilla, load(tmp_path / "b.pt"))


def test_checkpoints_from_before_hydra_keep_their_form(tmp_path):
    vanilla = save(tmp_path / "new.pt")
    state = load_checkpoint(tmp_path / "new.pt")
    state["args"] = state.pop("cfg")["model"]
    torch.save(state, tmp_path / "a.pt")
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="8l")
    found = load_checkpoint(tmp_path / "b.pt")
    assert "cfg" not in found and found["args"].encoder_heads == "8l"
    model = FixedTransformerModel.build_model(found["args"], task()).eval()
    model.load_state_dict(found["model"], strict=True)
    assert_same(vanilla, model)


def test_a_band_as_wide_as_the_sentence_is_the_same_model(tmp_path):
    vanilla = save(tmp_path / "a.pt")
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="8xband:8")
    assert_same(vanilla, load(tmp_path / "b.pt"))
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "c.pt", encoder_heads="8xband:1")
    assert not torch.allclose(run(vanilla)[0], run(load(tmp_path / "c.pt"))[0], atol=1e-3)


def test_a_heads_projections_follow_it(tmp_path):
    """Layer by layer, each learned head must be the vanilla layer's head in that place."""
    vanilla = save(tmp_path / "a.pt")
    mix = "0@current+learned+previous+band:8+4l/1@learned+7f"
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads=mix)
    model = load(tmp_path / "b.pt")
    for layer, heads in ((0, [1, 3, 4, 5, 6, 7]), (1, [0])):
        rows = [row for head in heads for row in range(4 * head, 4 * head + 4)]
        old, new = (m.encoder.layers[layer].self_attn for m in (vanilla, model))
        for name in ("q_proj", "k_proj"):
            assert torch.equal(getattr(new, name).weight, getattr(old, name).weight[rows])
            assert torch.equal(getattr(new, name).bias, getattr(old, name).bias[rows])
        for name in ("v_proj", "out_proj"):
            assert torch.equal(getattr(new, name).weight, getattr(old, name).weight)


def test_fixed_heads_alone_keep_no_queries(tmp_path):
    save(tmp_path / "a.pt")
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="8f")
    kept = load_checkpoint(tmp_path / "b.pt")["model"]
    assert not [n for n in kept if n.startswith("encoder.layers") and ("q_" in n or "k_" in n)]
    run(load(tmp_path / "b.pt"))


def test_decoder_heads(tmp_path):
    vanilla = save(tmp_path / "a.pt")
    convert_checkpoint(
        tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="8l", decoder_heads="8xband:20"
    )
    assert_same(vanilla, load(tmp_path / "b.pt"))
    convert_checkpoint(
        tmp_path / "b.pt", tmp_path / "c.pt", encoder_heads="8l", decoder_heads="4xprevious+4l"
    )
    model = load(tmp_path / "c.pt")
    rows = vanilla.decoder.layers[0].self_attn.q_proj.weight[16:]
    assert torch.equal(model.decoder.layers[0].self_attn.q_proj.weight, rows)


def test_a_mix_is_narrowed_further_and_the_decoder_stays(tmp_path):
    fixed = save(
        *(tmp_path / "a.pt", "--encoder-heads", "4xcurrent+4l", "--decoder-heads", "8xband:2"),
        arch="fixed_transformer",
    )
    convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="6xcurrent+2xband:9")
    model = load(tmp_path / "b.pt")
    rows = fixed.encoder.layers[0].self_attn.q_proj.weight[8:]
    assert torch.equal(model.encoder.layers[0].self_attn.q_proj.weight, rows)
    assert load_checkpoint(tmp_path / "b.pt")["cfg"]["model"].decoder_heads == "8xband:2"


def test_options_are_kept_with_the_model(tmp_path):
    save(tmp_path / "a.pt")
    convert_checkpoint(
        *(tmp_path / "a.pt", tmp_path / "b.pt"),
        encoder_heads="8xband:2:1",
        options={"band_projection": "exact", "band_epsilon": "0.5"},
    )
    args = load_checkpoint(tmp_path / "b.pt")["cfg"]["model"]
    assert (args.band_projection, args.band_epsilon) == ("exact", 0.5)
    run(load(tmp_path / "b.pt"))


@pytest.mark.parametrize(
    ("heads", "given", "error", "message"),
    [
        ("7l", {}, HeadsError, "8"),
        ("8xrandom", {}, ConversionError, "has to be trained"),
        ("8l", {"tisa_kernels": "5"}, ConversionError, "tisa_kernels=0"),
        ("8l", {"band_projecton": "exact"}, ConversionError, "did you mean band_projection"),
        ("8l", {"band_projection": "none"}, ConversionError, "must be one of"),
        ("8l", {"band_epsilon": "wide"}, ConversionError, "band_epsilon=wide"),
    ],
)
def test_what_cannot_be_converted(tmp_path, heads, given, error, message):
    save(tmp_path / "a.pt")
    with pytest.raises(error, match=message):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads=heads, options=given)
    assert not (tmp_path / "b.pt").exists()


def test_a_fixed_head_cannot_learn_to_score(tmp_path):
    save(tmp_path / "a.pt", "--encoder-heads", "7f+1l", arch="fixed_transformer")
    with pytest.raises(ConversionError, match=r"head 0 of encoder layer 0 is 'current'.*learned"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="8l")


def test_tisa_is_left_out_when_asked_to(tmp_path):
    save(tmp_path / "a.pt", "--encoder-heads", "8l", "--tisa-kernels", "3",
         arch="fixed_transformer")  # fmt: skip
    with pytest.raises(ConversionError, match="tisa_kernels=0"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="8l")
    convert_checkpoint(
        *(tmp_path / "a.pt", tmp_path / "b.pt"), encoder_heads="8l", options={"tisa_kernels": 0}
    )
    run(load(tmp_path / "b.pt"))


def test_what_is_no_transformer(tmp_path):
    torch.save({"model": {}, "cfg": {"model": {"encoder": {"layers": 2}}}}, tmp_path / "a.pt")
    with pytest.raises(ConversionError, match="form of its own"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="8l")
    torch.save({"model": {}, "cfg": {"model": {"hidden": 3}}}, tmp_path / "a.pt")
    with pytest.raises(ConversionError, match="encoder_layers"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="8l")
    torch.save({"model": {}}, tmp_path / "a.pt")
    with pytest.raises(ConversionError, match="how its model was built"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "b.pt", encoder_heads="8l")


def test_the_verb(tmp_path):
    save(tmp_path / "a.pt")
    words = ["convert", tmp_path / "a.pt", "--out", tmp_path / "b.pt", "--encoder-heads"]
    words = [*map(str, words), "8xband:2", "--option", "band-projection=exact"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert load_checkpoint(tmp_path / "b.pt")["cfg"]["model"].encoder_heads == "8xband:2"
    assert CliRunner().invoke(app, [*words[:-1], "nonsense"]).exit_code != 0


def test_a_very_old_checkpoint_with_one_projection_for_three(tmp_path):
    vanilla = save(tmp_path / "old.pt")
    state = load_checkpoint(tmp_path / "old.pt")
    for side, layers in (("encoder", 2), ("decoder", 1)):
        for layer in range(layers):
            name = f"{side}.layers.{layer}.self_attn"
            for part in ("weight", "bias"):
                parts = [state["model"].pop(f"{name}.{letter}_proj.{part}") for letter in "qkv"]
                state["model"][f"{name}.in_proj_{part}"] = torch.cat(parts)
    torch.save(state, tmp_path / "old.pt")
    out = tmp_path / "new.pt"
    convert_checkpoint(tmp_path / "old.pt", out, encoder_heads="8l", decoder_heads="8l")
    assert_same(vanilla, load(out))


def test_what_stands_in_the_self_attentions_place_is_named(tmp_path):
    flags = ("--cross-self-attention",)
    vanilla = save(tmp_path / "cross.pt", *flags)
    convert_checkpoint(tmp_path / "cross.pt", tmp_path / "out.pt", encoder_heads="8l")
    assert_same(vanilla, load(tmp_path / "out.pt"))
    with pytest.raises(ConversionError, match="--cross-self-attention, which replaces the decoder"):
        convert_checkpoint(
            tmp_path / "cross.pt", tmp_path / "out.pt", encoder_heads="8l", decoder_heads="8l"
        )
    save(tmp_path / "plain.pt")
    with pytest.raises(HeadsError, match="is for the encoder"):
        convert_checkpoint(
            *(tmp_path / "plain.pt", tmp_path / "out.pt"),
            encoder_heads="8l",
            decoder_heads="8xband:2",
            options={"band_projection": "exact"},
        )


def test_a_place_that_cannot_be_written(tmp_path):
    save(tmp_path / "plain.pt")
    new = tmp_path / "new" / "folder" / "out.pt"
    convert_checkpoint(tmp_path / "plain.pt", new, encoder_heads="8l")
    assert [path.name for path in new.parent.iterdir()] == ["out.pt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        convert_checkpoint(tmp_path / "plain.pt", tmp_path / "file" / "x.pt", encoder_heads="8l")


def test_a_checkpoint_is_not_replaced_by_what_is_made_of_it(tmp_path):
    save(tmp_path / "plain.pt")
    before = (tmp_path / "plain.pt").read_bytes()
    with pytest.raises(ConversionError, match="give another out"):
        convert_checkpoint(
            tmp_path / "plain.pt", tmp_path / "." / "plain.pt", encoder_heads="8xband:2"
        )
    assert (tmp_path / "plain.pt").read_bytes() == before
