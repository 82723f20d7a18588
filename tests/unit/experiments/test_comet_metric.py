"""COMET as far as it can be tested without the package: with a stand-in for its module."""

import json
import sys
import types

import numpy as np
import pytest

from fairseq_fixed.experiments import bootstrap, comet_metric, counts, recipe, scoring, stages
from fairseq_fixed.experiments.errors import ExperimentError, RecipeError
from fairseq_fixed.experiments.verbs import score

SOURCE = [f"fuente {i}" for i in range(20)]
REFERENCE = [f"the reference number {i}" for i in range(20)]
WORSE = [f"a reference of number {i}" for i in range(20)]


class Model:
    """Scores by the share of the reference's words; remembers what it was asked."""

    def __init__(self, path):
        self.path = path
        self.asked = []

    def predict(self, data, *, batch_size, gpus, progress_bar):
        self.asked.append(data)
        scores = []
        for item in data:
            words = item["ref"].split()
            found = [word in item["mt"].split() for word in words]
            scores.append(sum(found) / len(words) - 0.1 * (item["src"] == "fuente 3"))
        return types.SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture
def fake_comet(monkeypatch):
    module = types.ModuleType("comet")
    module.models = []

    def load_from_checkpoint(path):
        if "broken" in path:
            raise KeyError("state_dict")
        module.models.append(Model(path))
        return module.models[-1]

    module.download_model = lambda name: f"/downloaded/{name}"
    module.load_from_checkpoint = load_from_checkpoint
    monkeypatch.setitem(sys.modules, "comet", module)
    return module


@pytest.fixture
def no_comet(monkeypatch):
    monkeypatch.setitem(sys.modules, "comet", None)


def test_without_the_package_it_says_what_to_install(no_comet, tmp_path):
    with pytest.raises(ExperimentError, match=r"pip install unbabel-comet, or leave score\.comet"):
        comet_metric.Comet("Unbabel/wmt22-comet-da", SOURCE)
    content = {"pair": "es-en", "data": {"kind": "sword"}, "score": {"comet": "x"}}
    with pytest.raises(RecipeError, match=r"score\.comet: COMET needs the package unbabel-comet"):
        recipe.check("test", content)
    recipe.check("test", {**content, "score": {}})  # nothing is asked of who does not want it


def test_another_module_of_that_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "comet", types.ModuleType("comet"))
    assert "has no download_model and no load_from_checkpoint" in comet_metric.why_unavailable()


def test_a_model_that_cannot_be_loaded(fake_comet):
    with pytest.raises(ExperimentError, match=r"'broken' cannot be loaded .KeyError"):
        comet_metric.Comet("broken", SOURCE)


def test_a_corpus_has_the_mean_times_a_hundred(fake_comet):
    metric = comet_metric.Comet("Unbabel/wmt22-comet-da", SOURCE)
    assert fake_comet.models[0].path == "/downloaded/Unbabel/wmt22-comet-da"
    result = scoring.score(WORSE, REFERENCE, {"comet": metric})["comet"]
    scores = fake_comet.models[0].predict(
        [{"src": s, "mt": w, "ref": r} for s, w, r in zip(SOURCE, WORSE, REFERENCE, strict=True)],
        batch_size=1, gpus=0, progress_bar=False,
    )  # fmt: skip
    assert result["score"] == pytest.approx(100 * scores.system_score, abs=1e-4)
    assert result["signature"].startswith("model:Unbabel/wmt22-comet-da|version:")
    assert result["detail"] == f"COMET = {result['score']:.2f}"


def test_a_checkpoint_of_ones_own_is_not_downloaded(fake_comet, tmp_path):
    file = tmp_path / "model.ckpt"
    file.write_text("")
    metric = comet_metric.Comet(str(file), SOURCE)
    assert fake_comet.models[0].path == str(file)
    assert metric.get_signature().startswith("model:model.ckpt|")  # no path of this machine


def test_sources_and_translations_must_be_as_many(fake_comet):
    with pytest.raises(ExperimentError, match="20 sources, but 3 translations"):
        comet_metric.Comet("m", SOURCE).corpus_score(WORSE[:3], [REFERENCE[:3]])


def test_kept_scores_serve_the_test_over_seeds(fake_comet):
    metric = comet_metric.Comet("m", SOURCE)
    good = [line.replace("number", "n") for line in REFERENCE]
    results = []
    for slug, lines in (("base", WORSE), ("good", good)):
        for seed in (1, 2):
            table = counts.count(lines, REFERENCE, {"comet": metric})
            packed = json.loads(json.dumps(counts.pack(table, REFERENCE)))
            again = scoring.make_metrics(["comet"], "none")["comet"]
            stated = metric.corpus_score(lines, [REFERENCE]).score
            assert counts.score_of(again, counts.unpack(packed)["comet"].sum(0)) == stated
            results.append({"slug": slug, "system": slug, "seed": seed, "statistics": packed})
    found = bootstrap.compare_results(results, "base", resamples=100)
    assert found["comet"]["good"]["seeds"] == [2, 2]


def test_negative_scores_are_kept():
    table = {"comet": np.array([[-300_000, 1], [900_000, 1]])}
    packed = counts.pack(table, ["a", "b"])
    assert counts.unpack(packed)["comet"].tolist() == [[-300_000, 1], [900_000, 1]]


def test_the_stage_and_its_verb(fake_comet, tmp_path):
    content = {"pair": "es-en", "data": {"kind": "sword"}, "score": {"comet": "Unbabel/m"}}
    plan = stages.compile_plan(recipe.check("test", content))
    stage = plan["score.7f-1l.seed1"]
    assert stage.argv[-4:] == ("--comet", "Unbabel/m", "--raw-source", "data/raw/test.es")
    assert "data/raw/test.es" in stage.inputs and stage.device
    assert "--comet" not in plan["compare"].argv  # sacrebleu's tests know nothing of it
    for name, lines in (("hyp", WORSE), ("ref", REFERENCE), ("src", SOURCE)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    options = {
        "reference": tmp_path / "ref", "source": tmp_path / "src", "train": tmp_path / "src",
        "statistics": tmp_path / "s", "lengths": tmp_path / "l", "comet": "Unbabel/m",
    }  # fmt: skip
    with pytest.raises(ExperimentError, match="--comet needs --raw-source"):
        score(tmp_path / "hyp", out=tmp_path / "o", **options)
    score(tmp_path / "hyp", out=tmp_path / "o", raw_source=tmp_path / "src", **options)
    scores = json.loads((tmp_path / "o").read_text())
    assert list(scores) == ["bleu", "chrf", "comet"]
    lengths = json.loads((tmp_path / "l").read_text())
    (bucket,) = lengths["by_length"]
    assert bucket["scores"]["comet"] == pytest.approx(scores["comet"]["score"])
    assert len(fake_comet.models[-1].asked) == 1  # each sentence is read once
