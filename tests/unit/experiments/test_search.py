import json

import pytest
from typer.testing import CliRunner

from fairseq_fixed.cli import app
from fairseq_fixed.experiments import search, stages, sweep
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.recipe import load

SYSTEMS = "systems=[7f+1l]"


def space(*overrides):
    return sweep.plan_search("bible_es_en", [SYSTEMS, *overrides])


def test_what_is_searched_and_what_is_fixed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = space("train.lr=interval(0.001,0.01)", "model.dropout=0.1,0.2", "seeds=[4]")
    assert found.keys == ("train.lr", "model.dropout")
    assert found.fixed == (SYSTEMS, "seeds=[4]")
    assert found.folder.parent == tmp_path / "runs/bible_es_en"
    assert found.folder.name.startswith("search.lr.dropout.")
    assert found.experiment.recipe.seeds == [4]
    with pytest.raises(ExperimentError, match="nothing is swept"):
        space("train.lr=0.1")


def test_another_search_has_another_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lr = "train.lr=interval(0.001,0.01)"
    first = space(lr)
    assert space(lr).folder == first.folder and space(lr).name == first.name
    assert space(lr, "jobs=1", "results=r").folder == first.folder  # decides nothing
    others = [
        space("train.lr=interval(0.001,0.02)"),
        space(lr, "train.max_update=200"),
        space(lr, "data.limit=1k"),
        sweep.plan_search("bible_es_en", ["systems=[8f]", lr]),
    ]
    assert len({s.folder for s in (first, *others)}) == 5
    assert space(lr, "out=here").folder == tmp_path / "here" / first.folder.name
    assert len({s.name for s in (first, *others)}) == 5


def test_a_search_cannot_be_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "bible_es_en", "train.lr=interval(0.001,0.01)", "-m", "--search", "3"]
    done = CliRunner().invoke(app, [*words, "--dry-run"])
    assert isinstance(done.exception, ExperimentError)
    assert "leave out --search" in str(done.exception)
    assert not (tmp_path / "runs").exists()


def test_the_best_trial_as_a_command(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    found = space("model.dropout=0.1,0.2", "model.encoder_layers=1,2", "out=here")
    study = optuna.create_study(direction="minimize")
    for dropout, value in (("0.1", 3.0), ("0.2", 2.0)):
        values = {"model.dropout": dropout, "model.encoder_layers": "1"}
        kinds = search.distributions(found.overrides)
        study.add_trial(optuna.trial.create_trial(params=values, distributions=kinds, value=value))
    page = search._write(study, found).read_text()
    assert (
        "`fairseq-fixed run bible_es_en 'systems=[7f+1l]' model.dropout=0.2 "
        "model.encoder_layers=1`" in page
    )


def test_hydras_sweeps_as_optunas_distributions():
    pytest.importorskip("optuna")
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    found = search.distributions(
        space(
            "train.lr=tag(log,interval(0.001,0.01))",
            "model.dropout=interval(0,0.5)",
            "model.ffn=int(interval(128,512))",
            "model.layers=range(1,6,2)",
            "train.max_tokens=2048,4096",
        ).overrides
    )
    assert found == {
        "train.lr": FloatDistribution(0.001, 0.01, log=True),
        "model.dropout": FloatDistribution(0, 0.5),
        "model.ffn": IntDistribution(128, 512),
        "model.layers": IntDistribution(1, 5, step=2),
        "train.max_tokens": CategoricalDistribution(["2048", "4096"]),
    }


@pytest.mark.parametrize(
    "override",
    ["data.limit=5k,10k", "subwords.size=1000,2000", "translate.beam=1,5", "seeds=[1],[2]"],
)
def test_what_says_nothing_by_its_valid_loss_is_refused(override):
    pytest.importorskip("optuna")
    key = override.partition("=")[0]
    with pytest.raises(ExperimentError, match=f"{key} cannot be searched: the search compares"):
        search.distributions(space(override).overrides)


def test_the_test_set_is_not_touched():
    plan = search.training_plan(stages.compile_plan(load("bible_es_en", ["seeds=[1,2]"])))
    kinds = {stage.kind for stage in plan}
    assert kinds == {"options", "corpus", "subwords", "preprocess", "train"}
    assert sum(stage.kind == "train" for stage in plan) == 4


def test_the_lowest_valid_losses_decide(tmp_path):
    experiment = load("bible_es_en", [SYSTEMS, "seeds=[1,2]"])
    for seed, losses in ((1, (5.0, 3.0, 4.0)), (2, (6.0, 5.0))):
        points = [
            {"valid_num_updates": str(i), "valid_loss": str(x), "valid_nll_loss": str(x)}
            for i, x in enumerate(losses)
        ]
        lines = [f"2026-01-01 00:00:00 | INFO | valid | {json.dumps(point)}" for point in points]
        (tmp_path / "logs").mkdir(exist_ok=True)
        (tmp_path / f"logs/train.7f-1l.seed{seed}.log").write_text("\n".join(lines) + "\n")
    assert search.objective(experiment, tmp_path) == 4.0
    (tmp_path / "logs/train.7f-1l.seed2.log").unlink()
    with pytest.raises(ExperimentError, match=r"train\.7f-1l\.seed2 has not validated"):
        search.objective(experiment, tmp_path)
