import json

import pytest

from fairseq_fixed.experiments import paths, recipe, trained
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.stages import compile_plan
from fairseq_fixed.experiments.stamps import Stamps


@pytest.fixture
def run(tmp_path):
    """A run's folder with one of four models trained, and then another."""
    content = {"pair": "es-en", "data": {"kind": "sword"}, "seeds": [1, 2]}
    experiment = recipe.check("test", content)
    (tmp_path / paths.RECIPE).write_text(recipe.dump(experiment))
    for file in (f"{paths.SUBWORDS}/model.model", f"{paths.BINARY}/dict.en.txt"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    return tmp_path


def train(run, slug, seed):
    checkpoint = run / paths.seed_folder(slug, seed) / paths.AVERAGED
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    return checkpoint


def test_what_is_trained_is_found(run):
    with pytest.raises(ExperimentError, match="vanilla, seed 1, is not trained yet"):
        trained.find_all(run)
    train(run, "vanilla", 2)
    mine = train(run, "7f-1l", 1)
    assert [(t.system.name, t.seed) for t in trained.find_all(run)] == [
        ("vanilla", 2), ("7f+1l", 1),
    ]  # fmt: skip
    (one,) = trained.find_all(run, system="7f+1l")
    assert one == trained.find(run) and one.checkpoint == mine
    assert trained.find_all(run, seed=2)[0].system.name == "vanilla"
    with pytest.raises(ExperimentError, match=r"7f\+1l, seed 2, is not trained yet"):
        trained.find_all(run, system="7f+1l", seed=2)


@pytest.mark.parametrize("name", ["subwords", "preprocess", "train.7f-1l.seed1"])
def test_a_model_of_other_settings_than_its_folder_has_now(run, name):
    """A finished run is started again with other settings, and stopped before the training."""
    train(run, "7f-1l", 1)
    plan = compile_plan(recipe.read(run))
    stamps = Stamps(run)
    for stage in plan:
        for output in (run / output for output in stage.outputs):
            if name in stage.name and not output.exists():
                output.parent.mkdir(parents=True, exist_ok=True)
                output.mkdir() if str(output).endswith("/") else output.touch()
    stamps.start(plan[name])
    stamps.finish(plan[name], 1.0)
    assert trained.find(run).seed == 1
    file = run / f".state/stamps/{name}.json"
    stamp = json.loads(file.read_text())
    file.write_text(json.dumps({**stamp, "argv": [*stamp["argv"], "--other"]}))
    for ask in (trained.find, trained.find_all):
        with pytest.raises(ExperimentError, match=rf"other settings.*\({name} is to be done"):
            ask(run)
    stamps.start(plan[name])  # begun, and not come to its output
    with pytest.raises(ExperimentError, match="other settings"):
        trained.find(run)


def test_what_a_run_does_not_have(run):
    train(run, "vanilla", 1)
    with pytest.raises(ExperimentError, match="no system '8f'"):
        trained.find_all(run, system="8f")
    with pytest.raises(ExperimentError, match=r"has no seed 7; it has \[1, 2\]"):
        trained.find_all(run, seed=7)


def test_a_colon_in_a_path_is_no_separator(tmp_path, monkeypatch):
    inside = tmp_path / "10:30"
    (inside / "data").mkdir(parents=True)
    assert trained.data_path(tmp_path / "data") == str(tmp_path / "data")
    monkeypatch.chdir(inside)
    assert trained.data_path(inside / "data") == "data"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExperimentError, match="10:30/data: fairseq takes a colon"):
        trained.data_path(inside / "data")
