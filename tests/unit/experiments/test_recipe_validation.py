import dataclasses
import shutil
from pathlib import Path

import pytest
import yaml

from fairseq_fixed.experiments import recipe as recipes
from fairseq_fixed.experiments import resources
from fairseq_fixed.experiments.errors import ExperimentError, RecipeError
from fairseq_fixed.experiments.schema import Recipe, TrainSettings

ROOT = Path(__file__).resolve().parents[3]
BIBLE = {"pair": "es-en", "data": {"kind": "sword"}}


def errors_of(content):
    with pytest.raises(RecipeError) as caught:
        recipes.check("test", content)
    return caught.value.errors


def test_defaults_are_filled_in():
    experiment = recipes.check("test", BIBLE)
    assert experiment.recipe.train == TrainSettings()
    assert [s.name for s in experiment.systems] == ["vanilla", "7f+1l"]
    assert experiment.baseline.name == "vanilla"
    assert [s.name for s in experiment.others] == ["7f+1l"]


def test_all_errors_are_reported_at_once():
    errors = errors_of(
        {
            "pair": "es-de",
            "data": {"kind": "sword", "limit": "many"},
            "train": {"max_updat": 5, "lr": "fast", "warmup_updates": True, "max_update": 0},
            "model": {"dim": 100, "dropout": 1.5},
            "systems": ["7f+2l", "vanilla", "vanilla", {"heads": "9z"}],
            "seeds": [1, 1],
            "baseline": "8f",
            "sistems": [],
        }
    )
    text = "\n".join(errors)
    for expected in (
        "sistems: unknown key; did you mean 'systems'?",
        "train.max_updat: unknown key; did you mean 'max_update'?",
        "train.lr: expected a number, got 'fast'",
        "train.warmup_updates: expected a whole number, got True",
        "train.max_update: must be above 0, is 0",
        "model.dim: 100 is not divisible by model.heads = 8",
        "model.dropout: must be at least 0 and below 1, is 1.5",
        "pair: the embedded Bibles are es-en and en-es, not 'es-de'",
        "data.limit:",
        "systems[0]:",
        "systems[2]: 'vanilla' is there twice",
        "systems[3]:",
        "seeds: one is there twice: [1, 1]",
        "baseline: '8f' is not one of the systems",
    ):
        assert expected in text, expected
    assert len(errors) == 14


def test_a_wrong_count_of_heads_names_both_numbers():
    (error,) = errors_of({**BIBLE, "systems": ["7f+2l"]})
    assert "9" in error and "8" in error


@pytest.mark.parametrize("limit", ["5k", 5000, "5000", None])
def test_limits(limit):
    data = {"kind": "sword", "limit": limit}
    assert recipes.check("test", {**BIBLE, "data": data}).recipe.data.limit in (str(limit), None)


def test_missing_keys_and_kinds():
    assert errors_of({"data": {"kind": "sword"}}) == ["pair: missing, and it has no default"]
    assert "data.kind: 'bible' is unknown" in errors_of({**BIBLE, "data": {"kind": "bible"}})[0]
    assert "data.kind: missing" in errors_of({**BIBLE, "data": {}})[0]
    assert errors_of({**BIBLE, "data": 3}) == [
        "data.kind: missing; known: archive, custom, sword",
    ]


def test_missing_files_are_named_and_paths_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("x\ty\n")
    content = {"pair": "xx-yy", "data": {"kind": "custom", "train": ["a.tsv"]}}
    assert recipes.check("test", content).recipe.data.train == [str(tmp_path / "a.tsv")]
    content["data"]["test"] = ["b.xx", "b.yy", "b.zz"]
    errors = errors_of(content)
    assert f"data.test: there is no file {tmp_path / 'b.xx'}" in errors
    assert "data.test: expected one or two files, got 3" in errors


def test_a_batch_must_hold_the_longest_sentence():
    errors = errors_of({**BIBLE, "train": {"max_tokens": 500}})
    assert errors == [
        "train.max_tokens: 500 is below model.max_positions = 1024, so that a long sentence fits "
        "in no batch"
    ]


def test_how_a_batch_is_shared_out():
    assert errors_of({**BIBLE, "train": {"processes": "all"}}) == [
        "train.batch_tokens: must be given with train.processes = all, or the batch would depend "
        "on the machine"
    ]
    assert errors_of({**BIBLE, "train": {"batch_tokens": 16384, "update_freq": 2}}) == [
        "train.update_freq: follows from train.batch_tokens and train.processes; leave it out"
    ]
    assert errors_of({**BIBLE, "train": {"batch_tokens": 12288, "processes": 2}}) == [
        "train.batch_tokens: 12288 is no multiple of train.max_tokens = 4096 times "
        "train.processes = 2"
    ]
    assert "train.processes: must be above 0" in errors_of({**BIBLE, "train": {"processes": 0}})[0]
    wrong = errors_of({**BIBLE, "train": {"processes": "some"}})[0]
    assert wrong.startswith("train.processes: expected a whole number or")


def test_a_tokenizer_that_cannot_be_used_is_said_before_training(tmp_path, monkeypatch):
    from sacrebleu.tokenizers import tokenizer_ja_mecab, tokenizer_ko_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)  # as without the extra
    monkeypatch.setattr(tokenizer_ko_mecab, "MeCab", None)
    (tmp_path / "a.tsv").write_text("x\ty\n")
    data = {"kind": "custom", "train": [str(tmp_path / "a.tsv")]}
    for language in ("ja", "ko"):
        content = {"pair": f"en-{language}", "data": data}
        (error,) = errors_of(content)
        assert error.startswith(f"score.tokenize: sacrebleu's {language}-mecab does not work here")
        assert f"pip install 'sacrebleu[{language}]', or set score.tokenize=char" in error
        # a finished run is read, and a dry run printed, where it could not be scored
        assert recipes.check("t", content, tools=False).tokenizer == f"{language}-mecab"
        assert recipes.check("t", {**content, "score": {"metrics": ["chrf"]}})
        assert recipes.check("t", {**content, "score": {"tokenize": "char"}}).tokenizer == "char"
    (error,) = errors_of({**BIBLE, "score": {"tokenize": "13b"}})
    assert "this sacrebleu has no tokenizer '13b'; did you mean '13a'?" in error


def test_tokenizer_of_the_target_language(tmp_path):
    (tmp_path / "a.tsv").write_text("x\ty\n")
    data = {"kind": "custom", "train": [str(tmp_path / "a.tsv")]}
    assert recipes.check("t", {"pair": "en-zh", "data": data}).tokenizer == "zh"
    for pair in ("en-zh_CN", "en-zh_TW", "en-ZH"):  # a region changes nothing
        assert recipes.check("t", {"pair": pair, "data": data}).tokenizer == "zh"
    assert recipes.check("t", {"pair": "en-de", "data": data}).tokenizer == "13a"
    content = {"pair": "en-de", "data": data, "score": {"tokenize": "char"}}
    assert recipes.check("t", content).tokenizer == "char"


def test_a_schedule_without_the_warm_up_that_it_needs():
    # fairseq's inverse_sqrt takes 4,000 updates where it is told nothing, and divides by 0 at 0
    (error,) = errors_of({**BIBLE, "train": {"warmup_updates": 0}})
    assert error.startswith("train.warmup_updates: must be at least 1 with train.lr_scheduler=inv")
    # a run that was made before this was asked is read as it is
    assert recipes.check("t", {**BIBLE, "train": {"warmup_updates": 0}}, files=False)
    assert recipes.check("t", {**BIBLE, "train": {"warmup_updates": 0, "lr_scheduler": "fixed"}})
    (error,) = errors_of({**BIBLE, "train": {"warmup_updates": -1, "lr_scheduler": "fixed"}})
    assert "is -1" in error
    (error,) = errors_of({**BIBLE, "train": {"lr": float("nan")}})
    assert error == "train.lr: must be a finite number, is nan"


def test_numbers_written_as_texts_by_yaml():
    content = yaml.safe_load("{pair: es-en, data: {kind: sword}, train: {lr: 1e-3}}")
    assert recipes.check("test", content).recipe.train.lr == 1e-3


def test_dump_and_read_give_the_same_experiment(tmp_path):
    content = {**BIBLE, "systems": ["vanilla", {"heads": "8l", "lr": 0.1}], "seeds": [3, 4]}
    experiment = recipes.check("test", content)
    (tmp_path / "recipe.yaml").write_text(recipes.dump(experiment), encoding="utf-8")
    assert recipes.read(tmp_path) == experiment
    assert dataclasses.asdict(experiment.recipe).keys() <= set(
        yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    )


@pytest.mark.parametrize("name", ["wmt19_en_de_small", "bible_es_en", "iwslt14_de_en"])
def test_a_dump_without_defaults_is_the_same_recipe(tmp_path, name):
    experiment = recipes.load(name, ["seeds=[2,3]", "train.lr=0.5"])
    text = recipes.dump(experiment, defaults=False)
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    assert recipes.read(tmp_path) == experiment
    assert len(text) < len(recipes.dump(experiment)) and "optimizer" not in text


def test_reading_what_is_no_run(tmp_path):
    with pytest.raises(ExperimentError, match="is not the folder of a run"):
        recipes.read(tmp_path)


class TestCompose:
    def test_every_recipe_of_the_project_is_valid_and_opens_with_a_comment(self):
        files = recipes.recipe_files()
        assert {"bible_es_en", "bible_en_es", "custom"} <= {f.stem for f in files}
        for file in files:
            text = file.read_text(encoding="utf-8")
            assert text.startswith("# @package _global_\n#\n# ")
            for word in ("# Needs:", "# Costs:", "# Run:", f"fairseq-fixed run {file.stem}"):
                assert word in text, (file, word)
            content = recipes.compose(file.stem)
            assert content["description"] and content["cost"]
            if file.stem != "custom":
                recipes.load(file.stem, tools=False)

    def test_only_keys_that_exist_are_set(self):
        for file in recipes.recipe_files():
            content = recipes.compose(file.stem)
            assert set(content) <= {f.name for f in dataclasses.fields(Recipe)}

    def test_overrides(self):
        experiment = recipes.load(
            "bible_es_en",
            [
                "train.max_update=7",
                "data.limit=5k",
                "systems=[vanilla,0-0@7f+1l/1-1@8l,{heads: 8l, name: mine}]",
                "seeds=[1,2]",
            ],
        )
        assert experiment.recipe.train.max_update == 7
        assert experiment.recipe.data.limit == "5k"
        assert [s.name for s in experiment.systems] == ["vanilla", "0-0@7f+1l/1-1@8l", "mine"]
        assert experiment.recipe.seeds == [1, 2]

    def test_the_other_direction_differs_in_the_pair_alone(self):
        one, other = (recipes.compose(n) for n in ("bible_es_en", "bible_en_es"))
        assert (one.pop("pair"), other.pop("pair")) == ("es-en", "en-es")
        assert one == other

    def test_unknown_key_in_an_override(self):
        with pytest.raises(RecipeError, match="did you mean 'max_update'"):
            recipes.load("bible_es_en", ["train.max_updates=7"])

    def test_broken_override(self):
        with pytest.raises(ExperimentError, match=r"cannot read the override 'systems=\[7f'"):
            recipes.load("bible_es_en", ["systems=[7f"])

    def test_unknown_recipe(self):
        with pytest.raises(ExperimentError, match="did you mean 'bible_es_en'"):
            recipes.load("bible_es_e")
        with pytest.raises(ExperimentError, match=r"there is no file nothing\.yaml"):
            recipes.load("nothing.yaml")

    def test_own_file_with_the_projects_defaults(self, tmp_path):
        own = tmp_path / "own.yaml"
        own.write_text(
            "defaults:\n  - /train: small_cpu\n  - _self_\n"
            "pair: en-es\ndata: {kind: sword}\ntrain: {max_update: 3}\n"
        )
        experiment = recipes.load(str(own), ["train.lr=0.5"])
        assert experiment.name == "own"
        assert experiment.recipe.train.max_update == 3
        assert experiment.recipe.train.lr == 0.5
        assert experiment.recipe.train.warmup_updates == 400

    def test_the_file_must_be_called_yaml(self, tmp_path):
        (tmp_path / "own.yml").write_text("pair: en-es\n")
        with pytest.raises(ExperimentError, match=r"by \.yaml alone: rename .*own\.yml"):
            recipes.load(str(tmp_path / "own.yml"))

    @pytest.mark.parametrize(
        "name", ["clóne", "clone (copy)", "it's", "a=b", "a#b", "a~b", "clon[e]", 'a"b', "a,b", "{"]
    )
    def test_a_clone_may_lie_anywhere(self, tmp_path, monkeypatch, name):
        clone = tmp_path / name
        shutil.copytree(ROOT / "configs", clone / "configs")
        monkeypatch.setattr(resources, "configs_folder", lambda: clone / "configs")
        assert recipes.load("bible_es_en").recipe.pair == "es-en"

    def test_names_of_files_may_hold_anything(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for name in ("ä.de", "a(1).en"):
            (tmp_path / name).write_text("x\n")
        names = f"[{recipes.quoted('ä.de')},{recipes.quoted('a(1).en')}]"
        experiment = recipes.load("custom", ["pair=de-en", f"data.train={names}"])
        assert experiment.recipe.data.train == [f"{tmp_path}/ä.de", f"{tmp_path}/a(1).en"]
        with pytest.raises(ExperimentError, match=r"needs quotes, and the shell others"):
            recipes.load("custom", ["pair=de-en", "data.train=[ä.de,a(1).en]"])

    def test_own_file_that_is_no_yaml(self, tmp_path):
        own = tmp_path / "own.yaml"
        own.write_text("pair: [en\n")
        with pytest.raises(ExperimentError, match=r"own\.yaml"):
            recipes.load(str(own))


@pytest.fixture
def own_recipe(tmp_path, monkeypatch):
    """A user's recipe with what an earlier run has left beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /recipe/bible_es_en\n  - _self_\n"
    )
    for folder in ("results", "data", "threads", "train"):
        (tmp_path / folder).mkdir()
    (tmp_path / "train/mine.yaml").write_text("# @package train\nlr: 0.25\n")
    return "mine.yaml"


def test_folders_beside_a_recipe_are_no_settings(own_recipe):
    content = recipes.compose(
        own_recipe, ["results=results", "threads=2", "data={max_words: 20}", "train.max_update=7"]
    )
    assert (content["results"], content["threads"]) == ("results", 2)
    assert content["data"] == {"kind": "sword", "max_words": 20}  # merged, as without the folder
    assert content["train"]["max_update"] == 7


def test_settings_of_ones_own_and_of_the_project_are_chosen_by_name(own_recipe):
    assert recipes.compose(own_recipe, ["train=mine"])["train"]["lr"] == 0.25
    assert recipes.compose(own_recipe, ["train=converge_cpu"])["train"]["patience"] == 5
    with pytest.raises(ExperimentError, match=r"no train 'converge_cp'.*converge_cpu"):
        recipes.compose(own_recipe, ["train=converge_cp"])


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("train", "patience", -2, "train.patience: must be at least 0"),
        ("train", "max_hours", -1.0, "train.max_hours: must be at least 0"),
        ("train", "max_hours", float("nan"), "train.max_hours: must be at least 0"),
        ("train", "clip_norm", -1.0, "train.clip_norm: must be at least 0"),
        ("train", "weight_decay", -0.1, "train.weight_decay: must be at least 0"),
        ("score", "alpha", 2.0, "score.alpha: must be above 0 and below 1"),
        ("score", "alpha", float("nan"), "score.alpha: must be above 0 and below 1"),
        ("score", "trials", -1, "score.trials: must be at least 0"),
        ("translate", "max_len_a", -1.0, "translate.max_len_a: must be at least 0"),
        ("translate", "length_penalty", float("inf"), "translate.length_penalty: must be finite"),
        ("subwords", "character_coverage", 3.0, "subwords.character_coverage: must be above 0"),
        ("data", "max_words", 0, "data.max_words: must be at least 1, or null"),
    ],
)
def test_bounds(section, key, value, message):
    content = {**BIBLE, section: {**BIBLE.get(section, {}), key: value}}
    (error,) = errors_of(content)
    assert error.startswith(message)
    assert recipes.check("test", content, files=False)  # a finished run is read all the same


def test_bounds_of_what_depends_on_another(tmp_path):
    (error,) = errors_of({**BIBLE, "samples": -1})
    assert error == "samples: must be at least 0, is -1"
    (error,) = errors_of({**BIBLE, "translate": {"max_len_a": 0, "max_len_b": 0}})
    assert "no room for a translation" in error
    for language in ("de", "en"):
        (tmp_path / f"t.{language}").write_text("a\nb\n")
    files = [str(tmp_path / f"t.{language}") for language in ("de", "en")]
    data = {"kind": "custom", "train": files}
    (error,) = errors_of({"pair": "de-en", "data": {**data, "held_out": 0}})
    assert error.startswith("data.held_out: must be at least 1")
    given = {**data, "valid": files, "test": files, "held_out": 0}
    assert recipes.check("test", {"pair": "de-en", "data": given})
    (error,) = errors_of({"pair": "en-de", "data": data})
    assert "is the source of en-de and ends in .de; its en file comes first" in error
    (error,) = errors_of({"pair": "de-en", "data": {**data, "train": files[:1] * 2}})
    assert "is given for both languages" in error
    assert recipes.check("test", {**BIBLE, "pair": "es-en"}).recipe.pair == "es-en"


def test_a_damaged_recipe_is_said(tmp_path):
    for content in (b"pair: [", b"pair: \xe4"):
        (tmp_path / "recipe.yaml").write_bytes(content)
        with pytest.raises(ExperimentError, match="is damaged"):
            recipes.read(tmp_path)
    (tmp_path / "mine.yaml").write_bytes(b"pair: de-en  # \xe4\n")
    with pytest.raises(ExperimentError, match="is not UTF-8"):
        recipes.compose(str(tmp_path / "mine.yaml"))


def test_a_tokenizer_whose_model_cannot_be_had(monkeypatch):
    import sacrebleu.metrics.bleu as module

    def no_network(*_args, **_options):
        raise OSError("no route to host")

    monkeypatch.setattr(module.BLEU, "__init__", no_network)
    content = {"pair": "es-en", "data": {"kind": "sword"}, "score": {"tokenize": "flores200"}}
    with pytest.raises(RecipeError, match=r"flores200 does not work here \(no route to host"):
        recipes.check("t", content)
