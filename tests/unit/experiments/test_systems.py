import pytest

from fairseq_fixed.experiments.errors import RecipeError
from fairseq_fixed.experiments.resources import configs_folder
from fairseq_fixed.experiments.schema import ModelSettings
from fairseq_fixed.experiments.settings import settings_hash
from fairseq_fixed.experiments.systems import parse_systems, render_flags, slug


def parse(*entries, folder=None, tmp_path=None):
    errors: list[str] = []
    systems = parse_systems(entries, ModelSettings(), folder or tmp_path, errors)
    assert not errors
    return systems


def test_vanilla_is_fairseqs_own_transformer(tmp_path):
    (system,) = parse("vanilla", tmp_path=tmp_path)
    assert system.arguments == ("--arch", "transformer")


def test_mix(tmp_path):
    (system,) = parse("0-2@7f+1l/3-5@8l", tmp_path=tmp_path)
    assert system.arguments == (
        "--arch", "fixed_transformer", "--encoder-heads", "0-2@7f+1l/3-5@8l",
    )  # fmt: skip
    assert not set(system.slug) & set(":/@+")


def test_mapping(tmp_path):
    (system,) = parse({"heads": "8l", "tisa_kernels": 5, "fp16": True}, tmp_path=tmp_path)
    assert system.name == "8l tisa_kernels=5 fp16=True"
    assert system.arguments[2:] == ("--encoder-heads", "8l", "--tisa-kernels", "5", "--fp16")


def test_decoder_heads(tmp_path):
    entry = {"heads": "7f+1l", "decoder_heads": "4xprevious+4l"}
    (system,) = parse(entry, tmp_path=tmp_path)
    assert system.name == "7f+1l decoder_heads=4xprevious+4l"
    assert system.arguments[2:] == (
        "--encoder-heads", "7f+1l", "--decoder-heads", "4xprevious+4l",
    )  # fmt: skip
    errors: list[str] = []
    wrong = [
        {"heads": "8l", "decoder_heads": "7f+1l"},
        {"heads": "8l", "decoder_heads": 4},
        {"decoder_heads": "8l"},
    ]
    assert not parse_systems(wrong, ModelSettings(), tmp_path, errors)
    assert "a decoder cannot have 'next'" in errors[0]
    assert "unknown kind '4'" in errors[1]
    assert "heads: 8l" in errors[2]
    (tmp_path / "mine.yaml").write_text("heads: 8l\ndecoder_heads: 8xnext\n")
    assert not parse_systems(["mine"], ModelSettings(), tmp_path, errors)
    assert "a decoder cannot have 'next'" in errors[3]


def test_file_of_configs_model_may_use_the_names_of_hydra(tmp_path):
    (tmp_path / "mine.yaml").write_text("_name: fixed_transformer_tiny\nencoder_heads: 8f\nx: 1\n")
    (system,) = parse("mine", tmp_path=tmp_path)
    assert (system.name, system.slug) == ("mine", "mine")
    assert system.arguments == (
        "--arch", "fixed_transformer_tiny", "--encoder-heads", "8f", "--x", "1",
    )  # fmt: skip


def test_slugs_of_different_systems_differ(tmp_path):
    systems = parse("7f+1l", {"heads": "7f+1l", "name": "7f-1l"}, tmp_path=tmp_path)
    assert systems[0].slug == "7f-1l"
    assert systems[0].slug != systems[1].slug


@pytest.mark.parametrize("name", ["7f+1l", "a:b/c@d+e", "..", "/", "x" * 300, "日本"])
def test_a_slug_is_a_safe_folder_name(name):
    text = slug(name)
    assert text and len(text) <= 60 and text not in (".", "..")
    assert not set(text) & set(":/@+ \\")
    assert not text.startswith(("-", "."))


@pytest.mark.parametrize(
    ("layers", "mix"),
    [
        (2, "0-0@7f+1l/1-1@8l"),
        (3, "0-1@7f+1l/2-2@8l"),
        (6, "0-2@7f+1l/3-5@8l"),
    ],
)
def test_halves_of_the_encoder(tmp_path, layers, mix):
    errors: list[str] = []
    entry = {"name": "lower", "lower": "7f+1l", "upper": "8l"}
    (system,) = parse_systems([entry], ModelSettings(encoder_layers=layers), tmp_path, errors)
    assert not errors and system.name == "lower"
    assert system.arguments == ("--arch", "fixed_transformer", "--encoder-heads", mix)


def test_halves_that_are_none(tmp_path):
    entries = [{"lower": "8l"}, {"lower": "8l", "upper": "8f", "heads": "8l"}, {"upper": "9l"}]
    errors: list[str] = []
    parse_systems(entries, ModelSettings(), tmp_path, errors)
    assert len(errors) == 3
    assert "`lower` and `upper` go together" in errors[0] and "either `heads`" in errors[1]
    entry = {"lower": "8l", "upper": "8f"}
    parse_systems([entry], ModelSettings(encoder_layers=1), tmp_path, errors)
    assert "need two encoder layers or more" in errors[-1]


def test_flags():
    flags = {"a_b": 1, "fp16": True, "off": False, "none": None, "many": [1, 2], "--c-d": "x y"}
    assert render_flags(flags) == (
        "--a-b", "1", "--fp16", "--many", "1", "2", "--c-d", "x y",
    )  # fmt: skip


def test_false_takes_back_what_the_recipe_gives_to_all():
    from fairseq_fixed.experiments import recipe
    from fairseq_fixed.experiments.stages import compile_plan

    content = {
        "pair": "es-en",
        "data": {"kind": "sword"},
        "model": {"flags": {"encoder_normalize_before": True, "layernorm_embedding": True}},
        "train": {"precision": "fp16", "flags": {"sentence_avg": True}},
        "systems": [
            "7f+1l",
            {"heads": "7f+1l", "encoder_normalize_before": False, "share_all_embeddings": False,
             "fp16": None, "sentence_avg": False},
            {"name": "the same", "heads": "7f+1l", "no_encoder_positional_embeddings": False,
             "lr": None},
        ],
    }  # fmt: skip
    exp = recipe.check("test", content)
    first, second, third = (s.argv for s in compile_plan(exp) if s.kind == "train")
    switches = {
        "--encoder-normalize-before", "--share-all-embeddings", "--fp16", "--sentence-avg",
    }  # fmt: skip
    assert switches <= set(first) and not switches & set(second)
    assert "--layernorm-embedding" in second
    assert "--lr" in third and switches <= set(third)  # what takes nothing back changes nothing
    one, other, same = (settings_hash(exp, system) for system in exp.systems)
    assert one != other and one == same


def test_files_are_read_once_and_for_all(tmp_path, monkeypatch):
    from fairseq_fixed.experiments import recipe

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yml").write_text("heads: 8l\ntisa_kernels: 5\n")
    content = {"pair": "es-en", "data": {"kind": "sword"}, "systems": ["vanilla", "mine.yml"]}
    exp = recipe.check("test", content)
    assert [s.name for s in exp.systems] == ["vanilla", "mine"]
    (tmp_path / "recipe.yaml").write_text(recipe.dump(exp))
    (tmp_path / "mine.yml").unlink()  # a run's stages read its recipe, elsewhere and later
    monkeypatch.chdir("/")
    assert recipe.read(tmp_path).systems == exp.systems
    for text, message in (("[1]", "holds no keys"), ("{", "not valid YAML"), (None, "there is no")):
        if text is not None:
            (tmp_path / "mine.yml").write_text(text)
        elif (tmp_path / "mine.yml").exists():
            (tmp_path / "mine.yml").unlink()
        with pytest.raises(RecipeError, match=message):
            recipe.check("test", {**content, "systems": [f"{tmp_path}/mine.yml"]})


def test_a_word_that_is_nothing(tmp_path):
    errors: list[str] = []
    parse_systems(["vanila"], ModelSettings(), tmp_path, errors)
    assert "neither 'vanilla', nor a file of configs/model, nor a mix" in errors[0]


def test_every_file_of_configs_model_is_a_system():
    folder = configs_folder() / "model"
    names = [file.stem for file in sorted(folder.glob("*.yaml"))]
    systems = parse(*names, folder=folder)
    assert [s.name for s in systems] == names
    edge = next(s for s in systems if s.name == "edge_self")
    assert edge.arguments == (
        "--arch", "fixed_transformer", "--encoder-heads", "7f+1l", "--fixed-edge", "self",
    )  # fmt: skip


def test_what_is_wrong_with_a_system_is_said(tmp_path):
    errors: list[str] = []
    wrong = [
        {"heads": "8l", "encoder_layers": "two"},
        {"heads": "8l", "decoder_attention_heads": 0},
        {"lower": "8l", "upper": "8f", "encoder_layers": 2.5},
        {"heads": "8l", "name": " "},
        "nosuch.yaml",
    ]
    assert not parse_systems(wrong, ModelSettings(), tmp_path, errors)
    whole = "expected a whole number above 0, got"
    for error, expected in zip(
        errors,
        (
            f"systems[0]: encoder_layers: {whole} 'two'",
            f"systems[1]: decoder_attention_heads: {whole} 0",
            f"systems[2]: encoder_layers: {whole} 2.5",
            "systems[3]: `name` is empty",
            "systems[4]: there is no file nosuch.yaml",
        ),
        strict=True,
    ):
        assert error.startswith(expected)


def test_a_sign_is_part_of_a_folder_name():
    assert slug("8xgaussian:-1:1") != slug("8xgaussian:1:1")
