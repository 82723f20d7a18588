import pytest
import torch

from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.models import (
    VANILLA,
    ModelSettings,
    build_all,
    check_models,
    make_task,
    parse_options,
    parse_systems,
)
from fairseq_fixed.bench.settings import Place
from fairseq_fixed.bench.step import make_sample
from fairseq_fixed.heads import HeadsError

SMALL = parse_options(
    [
        "encoder_embed_dim=32",
        "decoder_embed_dim=32",
        "encoder_ffn_embed_dim=48",
        "encoder_layers=2",
        "decoder_layers=1",
    ]
)


def settings(systems="7f+1l", **more) -> ModelSettings:
    options = {**SMALL, **more.pop("options", {})}
    return ModelSettings(
        parse_systems(systems), "fixed_transformer_tiny", options, more.pop("vocabulary", 60)
    )


def test_fairseqs_transformer_has_our_sizes():
    built = build_all(settings("8l"), 1)
    mine, theirs = (
        {name: tuple(p.shape) for name, p in built[key].named_parameters()}
        for key in ("8l", VANILLA)
    )
    assert mine == theirs
    assert not any(type(m).__module__.startswith("fairseq_fixed") for m in built[VANILLA].modules())
    sizes = settings().sizes()
    assert (sizes.d, sizes.encoder_ffn, sizes.encoder_layers, sizes.decoder_layers) == (
        32,
        48,
        2,
        1,
    )
    assert sizes.vocabulary == len(make_task(60).source_dictionary) == 60


def test_systems_carry_options_of_their_own():
    models = settings("7f+1l,7f+1l fixed_edge=clamp tisa-kernels=2", options={"dropout": "0.3"})
    plain, other = models.systems
    assert other.name == "7f+1l fixed_edge=clamp tisa-kernels=2"
    assert models.arguments(plain).fixed_edge == "zero"
    assert models.arguments(other).fixed_edge == "clamp"
    assert models.arguments(other).tisa_kernels == 2
    assert models.arguments(other).dropout == 0.3
    built = build_all(models, 1)
    assert any("tisa" in name for name, _ in built[other.name].named_parameters())
    assert built[VANILLA].encoder.dropout_module.p == 0.3


def test_switches_are_true_or_false():
    assert settings().arguments().share_all_embeddings  # as in the recipes
    assert not settings(options={"share_all_embeddings": "false"}).arguments().share_all_embeddings
    with pytest.raises(BenchError, match="share_all_embeddings=perhaps: it is a switch"):
        settings(options={"share_all_embeddings": "perhaps"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropuot": "0.3"}, "dropuot: the model has none of that name. Did you mean dropout"),
        ({"dropout": "much"}, "invalid float value: 'much'"),
        ({"fixed_edge": "wrap"}, "invalid choice: 'wrap'"),
    ],
)
def test_options_that_the_model_does_not_take_are_named(options, message):
    with pytest.raises(BenchError, match=message):
        settings(options=options)


def test_what_no_model_can_be_made_of_is_named():
    with pytest.raises(BenchError, match="'dropout': give NAME=VALUE"):
        parse_options(["dropout"])
    with pytest.raises(BenchError, match="nothing given"):
        parse_systems(" , ")
    with pytest.raises(HeadsError, match="7 heads"):
        settings("7f")
    with pytest.raises(BenchError, match="vocabulary 4"):
        settings(vocabulary=4)
    with pytest.raises(BenchError, match="Did you mean fixed_transformer_tiny"):
        ModelSettings(parse_systems("8f"), "fixed_transformer_tinny")


def test_all_heads_learned_is_the_vanilla_model_and_is_held_to_it():
    models = settings("8l,7f+1l,8l tisa_kernels=2")
    assert [models.is_vanilla(system) for system in models.systems] == [True, False, False]
    built = build_all(models, 1)
    net_input = make_sample([(7, 5), (4, 6)], Place(), 60, 1)["net_input"]
    check_models(models, built, net_input)
    with torch.no_grad():
        built["8l"].encoder.layers[1].self_attn.v_proj.weight *= 2
    with pytest.raises(BenchError, match="8l and fairseq are to compute a transformer"):
        check_models(models, built, net_input)


def test_layers_may_differ():
    models = settings("0@8f/1@8l")
    assert [specs[0].kind for specs in models.specs(models.systems[0])] == ["current", "learned"]
