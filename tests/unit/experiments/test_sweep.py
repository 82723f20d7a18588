import contextlib
import json
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairseq_fixed.cli import app
from fairseq_fixed.experiments import (
    collection,
    machine,
    multirun,
    recipe,
    sweep,
    sweep_figure,
    sweep_report,
)
from fairseq_fixed.experiments.errors import ExperimentError, RecipeError
from fairseq_fixed.experiments.stamps import StageState
from tests.unit.experiments.test_report import fake_run


def points(*overrides, name="bible_es_en"):
    return sweep.plan_sweep(name, overrides).points


def values(*overrides, **kwargs):
    return [tuple(point.values.values()) for point in points(*overrides, **kwargs)]


# ------------------------------------------------------------------ points


def test_every_combination_is_a_run_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = sweep.plan_sweep(
        "bible_es_en", ["data.limit=5k,10k", "seeds=[1,2]", "model.layers=1,2"]
    )
    assert found.keys == ("data.limit", "model.layers")
    assert found.folder == tmp_path / "runs/bible_es_en/by.limit.layers"
    assert found.base == tmp_path / "runs/bible_es_en"
    assert [point.name for point in found.points] == [
        "limit-5k.layers-1", "limit-5k.layers-2", "limit-10k.layers-1", "limit-10k.layers-2",
    ]  # fmt: skip
    last = found.points[-1]
    assert last.experiment == recipe.load("bible_es_en", list(last.overrides))
    assert last.experiment.recipe.data.limit == "10k"
    assert last.experiment.recipe.model.layers == 2
    assert last.experiment.recipe.seeds == [1, 2]


def test_hydras_ways_of_naming_several_values():
    assert values("model.layers=range(1,4)") == [("1",), ("2",), ("3",)]
    assert values("train.lr=choice(0.1,0.2)") == [("0.1",), ("0.2",)]
    assert values("model.layers=sort(3,1,2)") == [("1",), ("2",), ("3",)]
    assert values("systems=[vanilla,8f],[vanilla,8l]") == [("[vanilla,8f]",), ("[vanilla,8l]",)]
    groups = [value for (value,) in values("train=glob(*_cpu)")]
    assert groups == ["converge_cpu", "small_cpu"]


def test_folders_tell_values_apart_that_look_alike():
    names = [p.name for p in points("systems=[vanilla,7f+1l],[vanilla,7f-current+1l],[8l]")]
    assert len(set(names)) == 3
    mixes = [p.name for p in points("systems=[7f+1l],[{heads: 7f+1l}]")]
    assert len(set(mixes)) == 2 and not set("".join(mixes)) & set(":/@+ ")


def test_keys_are_shortened_where_that_is_clear():
    assert sweep.short_keys(["data.limit", "train.lr"]) == {"data.limit": "limit", "train.lr": "lr"}
    keys = ["train.max_tokens", "translate.max_tokens", "seeds"]
    assert list(sweep.short_keys(keys).values()) == [*keys[:2], "seeds"]


def test_what_cannot_be_swept():
    with pytest.raises(ExperimentError, match="nothing is swept: give a key several values"):
        points("train.lr=1")
    with pytest.raises(ExperimentError, match=r"INTERVAL_SWEEP\. An interval is for --search"):
        points("train.lr=interval(0,1)")
    with pytest.raises(ExperimentError, match=r"train\.lr=1,2 gives several values: with -m"):
        recipe.load("bible_es_en", ["train.lr=1,2"])
    with pytest.raises(ExperimentError, match="swept twice"):
        points("train.lr=1,2", "train.lr=3,4")
    with pytest.raises(ExperimentError, match=r"cannot read the override .train\.lr=1,."):
        points("train.lr=1,")


def test_the_errors_of_all_points_are_said_at_once():
    with pytest.raises(RecipeError) as caught:
        points("systems=[9l],[8l]", "train.lr=1,2", "train.max_updat=3")
    one, other = caught.value.errors
    assert one == "train.max_updat: unknown key; did you mean 'max_update'?"
    assert other.endswith("(at systems-[9l].lr-1, systems-[9l].lr-2)")


def test_a_recipe_may_bring_its_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.yaml"
    own.write_text(
        "defaults:\n  - /recipe/bible_es_en\n  - _self_\n"
        "vars: {w: 1}\nsystems: [vanilla, '8xband:${vars.w}']\n"
        "multirun: {vars.w: '1,3', model.layers: [1, 2]}\n"
    )
    assert sweep.brings_sweep(str(own)) and not sweep.brings_sweep(str(own), [sweep.NO_SWEEP])
    found = sweep.plan_sweep(str(own), ["train.max_update=5"])
    assert found.folder == tmp_path / "runs/own"
    assert [p.experiment.systems[1].heads for p in found.points] == ["8xband:1"] * 2 + [
        "8xband:3"
    ] * 2
    assert all(p.experiment.recipe.multirun is None for p in found.points)
    # the command line's values take the place of the recipe's
    assert values("vars.w=5", name=str(own)) == [("5", "1"), ("5", "2")]
    assert values("vars.w=5,7", "model.layers=2", name=str(own)) == [("5", "2"), ("7", "2")]
    # and stay at its place, so that the points' folders keep their names; those of one point, too
    alone = sweep.plan_sweep(str(own), ["train.max_update=5", "model.layers=2", "vars.w=1"])
    assert [p.name for p in alone.points] == [found.points[1].name]
    again = sweep.plan_sweep(str(own), ["train.max_update=5", "vars.w=1,3"])
    assert [p.name for p in again.points] == [p.name for p in found.points]
    own.write_text(own.read_text().replace("multirun: {", "multirun: nonsense # {"))
    with pytest.raises(ExperimentError, match="multirun: expected keys and their values"):
        sweep.plan_sweep(str(own))


def test_the_sweeps_of_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    band = sweep.plan_sweep("band_w_numpos")
    mixes = [p.experiment.systems[1].heads for p in band.points]
    assert mixes == [f"8xband:{w}:{k}" for w in (1, 3, 5, 10) for k in (0, 1, 2, 4)]
    assert {p.experiment.systems[0].name for p in band.points} == {"vanilla"}
    depth = sweep.plan_sweep("depth")
    assert len(depth.points) == 6
    deepest = depth.points[-1].experiment
    assert [s.heads for s in deepest.systems] == [
        None, "7f+1l", "0-2@7f+1l/3-5@8l", "0-2@8l/3-5@7f+1l",
    ]  # fmt: skip


def test_a_dry_run_prints_a_command_for_each_point(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", "bible_es_en", "-m", "data.limit=5k,10k", "--dry-run"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[1] == (
        "fairseq-fixed run bible_es_en data.limit=10k multirun=null "
        f"out={tmp_path}/runs/bible_es_en/by.limit/limit-10k"
    )
    # the same run as the sweep's point
    (_, other) = points("data.limit=5k,10k")
    words = multirun.point_command(sweep.plan_sweep("bible_es_en", ["data.limit=5k,10k"]), other)
    alone = recipe.load(words[1], words[2:])
    assert alone.recipe.data == other.experiment.recipe.data
    assert alone.systems == other.experiment.systems


@pytest.mark.parametrize("name", ["my runs, 2026", "müll (x)", "plain", "it's {7} \\"])
def test_the_command_of_a_point_stands_in_any_folder(name, tmp_path, monkeypatch):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    found = sweep.plan_sweep("bible_es_en", ["data.limit=5k,10k"])
    words = multirun.point_command(found, found.points[0])
    alone = recipe.load(words[1], words[2:], tools=False)
    assert Path(alone.recipe.out) == found.folder / found.points[0].name


def test_the_needs_of_every_point_are_checked_before_any_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "visible_gpus", lambda: ("0",))
    found = sweep.plan_sweep("bible_es_en", ["train.processes=1,2"], tools=False)
    with pytest.raises(ExperimentError, match=r"train\.processes = 2, but 1 GPUs are visible"):
        multirun.run_sweep(found, None)


# ------------------------------------------------------------------ table and figure


class Done:
    """Stamps by which every stage is done, but those of points named `todo`."""

    def __init__(self, folder):
        self.folder = folder

    def survey(self, plan, save):
        state = "todo" if (self.folder / "todo").exists() else "done"
        return {stage.name: StageState(state) for stage in plan}


@pytest.fixture
def swept(tmp_path, monkeypatch):
    """A sweep whose runs have reports: BLEU of the last system grows with the point."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_report, "Stamps", Done)

    def make(*overrides, systems="[vanilla,7f+1l]"):
        from fairseq_fixed.experiments.report import write_report

        found = sweep.plan_sweep("bible_es_en", [f"systems={systems}", *overrides])
        for i, point in enumerate(found.points):
            folder = found.folder / point.name
            names = [system.slug for system in point.experiment.systems]
            seeds = point.experiment.recipe.seeds
            values = (10.0, *[9.0] * (len(names) - 2), 11.0 + i)  # the last one grows
            scores = {
                name: dict.fromkeys(seeds, value)
                for name, value in zip(names, values[: len(names)], strict=True)
            }
            fake_run(folder, point.experiment, scores)
            write_report(point.experiment, folder)
        return found

    return make


def test_a_size_curve(swept):
    found = swept("data.limit=5k,10k,40k")
    page = sweep_report.write(found).read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert rows[0][:2] == ["| limit", "system"]
    assert [row[0] for row in rows[2:]] == ["| 5k", "| 5k", "| 10k", "| 10k", "| 40k", "| 40k"]
    assert "![scores by limit](sweep.png)" in page
    assert (found.folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    content = json.loads((found.folder / "sweep.json").read_text())
    assert [p["values"] for p in content["points"]][2] == {"data.limit": "40k"}
    assert "- Machine: " in page
    # the page is made of the JSON alone
    assert sweep_report.render(content, figure="sweep.png") == page


def test_the_losses_spread_is_drawn(swept):
    found = swept("data.limit=5k,10k", "seeds=[1,2]")
    sweep_report.write(found)
    content = json.loads((found.folder / "sweep.json").read_text())
    for point in content["points"]:
        for row in point["report"]["rows"]:
            row |= {"valid_loss": 3.0, "valid_loss_spread": 0.2}
            del row["scores"]["bleu"]
    series = sweep_figure._series(content, 0, "valid loss")
    assert [numbers[1:] for numbers in series] == [(3.0, 0.2)] * 2
    assert sweep_figure._series(content, 0, "bleu") == []  # and not the loss in its place


def test_results_that_last_fill_a_page(swept, tmp_path):
    found = swept("data.limit=5k,10k", "results=results")
    sweep_report.write(found)
    page = tmp_path / "page.md"
    page.write_text("<!-- results: bible_es_en-by-limit -->\n<!-- /results -->\n")
    assert collection.update_page(page, tmp_path / "results")
    text = page.read_text()
    assert "| limit | system |" in text and "| 5k | 7f+1l |" in text
    assert "Made by `fairseq-fixed run bible_es_en -m 'systems=[vanilla,7f+1l]'" in text
    pictures = collection.draw_collection(tmp_path / "results" / found.name, tmp_path / "docs")
    assert [picture.name for picture in pictures] == ["bible_es_en-by-limit.png"]
    assert pictures[0].is_file()
    done = CliRunner().invoke(app, ["report", str(tmp_path / "results")])
    assert done.exit_code == 0 and "| 10k | vanilla |" in done.stdout


def test_what_is_the_same_everywhere_is_listed_once(swept):
    found = swept("vars.w=1,3", "vars.k=0,2", systems="[vanilla,'8xband:${vars.w}:${vars.k}']")
    content = sweep_report.build(found, {})
    assert sweep_figure.constant(content) == {"vanilla"}
    header, rows = sweep_report.rows(content)
    assert header[:3] == ["w", "k", "system"]
    assert [row[:3] for row in rows] == [
        ["any", "any", "vanilla"],
        ["1", "0", "8xband:1:0"], ["1", "2", "8xband:1:2"],
        ["3", "0", "8xband:3:0"], ["3", "2", "8xband:3:2"],
    ]  # fmt: skip
    assert sweep_figure.draw(content, found.folder / "map.png")
    assert (found.folder / "map.png").stat().st_size > 10_000


def test_seeds_that_are_swept_are_not_taken_for_one(swept):
    found = swept("seeds=[1],[2]", systems="[vanilla,7f+1l]")
    content = sweep_report.build(found, {})
    assert sweep_figure.constant(content) == set()
    _, rows = sweep_report.rows(content)
    assert [row[:2] for row in rows] == [
        ["[1]", "vanilla"], ["[1]", "7f+1l"], ["[2]", "vanilla"], ["[2]", "7f+1l"],
    ]  # fmt: skip


def test_a_system_that_is_the_same_beside_another_baseline_is_listed_at_each_point(swept):
    found = swept("systems=[vanilla,8f],[7f+1l,8f]", systems="[vanilla,7f+1l]")
    content = sweep_report.build(found, {})
    assert sweep_figure.constant(content) == set()


def test_several_that_are_the_same_keep_their_order(swept):
    found = swept("vars.w=1,3", systems="[vanilla,8f,'8xband:${vars.w}']")
    _, rows = sweep_report.rows(sweep_report.build(found, {}))
    assert [row[1] for row in rows] == ["vanilla", "8f", "8xband:1", "8xband:3"]


def test_maps_of_points_with_different_numbers_of_systems(swept):
    found = swept("systems=[vanilla],[vanilla,8f]", "model.layers=1,2")
    content = sweep_report.build(found, {})
    assert sweep_figure.draw(content, found.folder / "map.png")
    found = swept("threads=1,2", "samples=1,2", systems="[vanilla]")  # nothing differs
    assert sweep_figure.draw(sweep_report.build(found, {}), found.folder / "map.png")


def test_signatures_that_differ_between_points_are_told_apart(swept):
    found = swept("train.lr=0.1,0.2")
    content = sweep_report.build(found, {})
    assert "- BLEU: `nrefs:1`\n" in sweep_report.render(content)
    content["points"][1]["report"]["signatures"]["bleu"] = "nrefs:1|tok:char"
    text = sweep_report.render(content)
    assert "- BLEU: `nrefs:1` (lr-0.1), `nrefs:1|tok:char` (lr-0.2)\n" in text


def test_points_that_are_missing_or_failed_are_said(swept):
    found = swept("train.lr=0.1,0.2,0.3,0.4")
    folders = [found.folder / point.name for point in found.points]
    (folders[1] / "todo").write_text("")
    error = ExperimentError(
        "stage train.8f.seed1 failed (exit status 1). Its log ends with:\n    x\n    no space\nmore"
    )
    page = sweep_report.write(found, {folders[3]: error}).read_text()
    assert "| 0.2 | (todo) |" in page and "| 0.4 | (failed) |" in page
    assert "- lr-0.4 failed: stage train.8f.seed1 failed (exit status 1). no space\n" in page
    assert "1 of 4 points are not finished yet" in page
    for folder in folders:
        (folder / "todo").write_text("")
    page = sweep_report.write(found).read_text()
    assert "4 of 4 points are not finished yet" in page and "sweep.png" not in page
    assert not (found.folder / "sweep.png").exists()


def test_other_values_and_more_keys(swept):
    found = swept("train.lr_scheduler=inverse_sqrt,fixed")
    assert sweep_figure.draw(sweep_report.build(found, {}), found.folder / "x.png")
    found = swept("train.lr=1,2", "model.dropout=0,0.1", "samples=1,2")
    content = sweep_report.build(found, {})
    assert not sweep_figure.draw(content, found.folder / "y.png")
    assert sweep_report.render(content).count("\n| ") == 2 + 2 * 8


@pytest.mark.parametrize(
    ("text", "value"), [("5k", 5000), ("1e-3", 0.001), ("20", 20), ("[1,2]", None), ("all", None)]
)
def test_numbers_among_values(text, value):
    assert sweep_figure.number(text) == value


# ------------------------------------------------------------------ SLURM

SBATCH = """#!{python}
import pathlib, sys
script = pathlib.Path(sys.argv[-1])
pathlib.Path({log!r}).write_text(script.read_text())
print("Submitted batch job 4242")
"""


def test_points_become_a_job_array(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    from fairseq_fixed.experiments.slurm import submit

    monkeypatch.chdir(tmp_path)
    log = tmp_path / "script"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text(SBATCH.format(python=sys.executable, log=str(log)))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    found = sweep.plan_sweep("bible_es_en", ["data.limit=5k,10k,20k"])
    settings = ["timeout_min=240", "slurm_partition=gpu", "gpus_per_node=1"]
    jobs = submit(found, settings)
    assert jobs == {p.name: f"4242_{i}" for i, p in enumerate(found.points)}
    script = log.read_text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for line in ("--array=0-2%3", "--time=240", "--partition=gpu", "--gpus-per-node=1"):
        assert f"#SBATCH {line}\n" in script
    assert "export PYTHONPATH=" in script
    pickles = sorted((found.folder / "slurm").rglob("4242_*_submitted.pkl"))
    assert len(pickles) == 3
    for file, point in zip(pickles, found.points, strict=True):
        job = pickle.loads(file.read_bytes()).function
        assert job.command[:3] == [sys.executable, "-m", "fairseq_fixed.cli"]
        assert job.command[3:] == [*multirun.point_command(found, point), "--plain"]
        again = job.checkpoint()
        assert again.function.command == job.command
    with pytest.raises(ExperimentError, match=r"SLURM takes no jobs from here: .*nonsense"):
        submit(found, ["nonsense=1"])


def test_set_up_and_name_of_jobs_are_taken_as_they_are(tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")
    from fairseq_fixed.experiments.slurm import submit

    monkeypatch.chdir(tmp_path)
    given = []
    monkeypatch.setattr(
        submitit.AutoExecutor, "update_parameters", lambda self, **options: given.append(options)
    )
    monkeypatch.setattr(submitit.AutoExecutor, "__init__", lambda *_, **__: None)
    monkeypatch.setattr(submitit.AutoExecutor, "batch", lambda self: contextlib.nullcontext())
    monkeypatch.setattr(
        submitit.AutoExecutor, "submit", lambda *_: types.SimpleNamespace(job_id="1")
    )
    found = sweep.plan_sweep("bible_es_en", ["data.limit=5k,10k"])
    for more, lines in (
        (["slurm_setup=module load cuda", "name=mine"], ["module load cuda"]),
        (["slurm_setup=[module load a, module load b]"], ["module load a", "module load b"]),
        ([], []),
    ):
        submit(found, more)
        assert given[-1]["slurm_setup"][1:] == lines
    assert given[0]["name"] == "mine" and given[-1]["name"] == found.name


def test_settings_of_jobs():
    from fairseq_fixed.experiments.slurm import parse_settings

    found = parse_settings(
        ["timeout_min=240", "slurm_partition=gpu", "slurm_setup=[module load x]"]
    )
    assert found == {
        "timeout_min": 240, "slurm_partition": "gpu", "slurm_setup": ["module load x"],
    }  # fmt: skip
    with pytest.raises(ExperimentError, match="expected KEY=VALUE"):
        parse_settings(["timeout_min"])


def test_slurm_and_search_need_several_values_and_their_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    monkeypatch.setitem(sys.modules, "optuna", None)
    for option, package in ((["--slurm", "timeout_min=1"], "slurm"), (["--search", "3"], "search")):
        done = CliRunner().invoke(app, ["run", "bible_es_en", *option])
        assert isinstance(done.exception, ExperimentError) and "go with -m" in str(done.exception)
        done = CliRunner().invoke(app, ["run", "bible_es_en", "-m", "train.lr=1,2", *option])
        assert f"fairseq-fixed-attention[{package}]" in str(done.exception)


def test_equal_points_are_one_and_none_is_said():
    found = sweep.plan_sweep("bible_es_en", ["train.lr=0.1,0.2,0.1"])
    assert [point.name for point in found.points] == ["lr-0.1", "lr-0.2"]
    with pytest.raises(ExperimentError, match="no value to run"):
        sweep.plan_sweep("bible_es_en", ["train.lr=range(1,0)"])
