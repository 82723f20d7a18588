"""Multirun and search on the miniature recipe: shared stages, resuming, what the summary says."""

import json
import signal
import time

import miniature
import pytest

from fairseq_fixed.experiments import paths

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

SWEEP = ("run", "mini.yaml", "-m", "train.lr=0.01,0.02", "train.max_update=20")
POINTS = ("lr-0.01", "lr-0.02")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished multirun: the folder it was started in, and what it printed."""
    folder = tmp_path_factory.mktemp("sweep")
    miniature.write_recipe(folder)
    return folder, miniature.run(*SWEEP, cwd=folder)


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def scores(folder):
    files = sorted(folder.glob(f"systems/*/seed1/{paths.SCORE}"))
    assert len(files) == 2
    return [load(file) for file in files]


def test_every_point_is_a_run_and_what_they_share_is_made_once(finished):
    folder, output = finished
    place = folder / "runs/mini/by.lr"
    for stage in ("corpus", "subwords", "preprocess"):
        assert sum(f": {stage}: starts" in line for line in output.splitlines()) == 1
        assert sum(f": {stage}: the same as in" in line for line in output.splitlines()) == 1
    for point in POINTS:
        assert f"{point}: train.7f-1l.seed1: starts" in output
        assert (place / point / "report/report.md").is_file()
        assert (place / point / paths.COMMANDS).is_file()
    status = miniature.run("status", "runs/mini/by.lr", cwd=folder)
    lines = status.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(POINTS)
    assert all(line.split(" ")[1] == line.split(" ")[3] for line in lines)


def test_the_summary_holds_what_the_runs_reports_hold(finished):
    folder, output = finished
    place = folder / "runs/mini/by.lr"
    page = (place / "sweep.md").read_text()
    assert page in output and str(place / "sweep.md") in output
    assert (place / "sweep.png").read_bytes().startswith(b"\x89PNG")
    content = load(place / "sweep.json")
    assert [point["state"] for point in content["points"]] == ["done", "done"]
    for point in content["points"]:
        report = load(place / point["name"] / "report/report.json")
        assert point["report"]["rows"] == report["rows"]
    assert miniature.run("report", "runs/mini/by.lr", cwd=folder) == page
    assert "| 0.01 | vanilla |" in page and "| 0.02 | 7f+1l |" in page


def test_finished_points_are_skipped_and_new_ones_added(finished):
    folder, _ = finished
    output = miniature.run(*SWEEP, cwd=folder)
    assert "All is done already." in output and ": starts" not in output


def test_a_point_is_what_the_same_run_by_itself_is(finished, tmp_path):
    miniature.write_recipe(tmp_path)
    miniature.run("run", "mini.yaml", "train.lr=0.02", "train.max_update=20", cwd=tmp_path)
    assert scores(tmp_path / "runs/mini") == scores(finished[0] / "runs/mini/by.lr/lr-0.02")
    # a sweep takes over what the recipe's own run has done
    output = miniature.run(*SWEEP, cwd=tmp_path)
    started = [line.split()[1:3] for line in output.splitlines() if ": starts" in line]
    assert started and all(
        point == "lr-0.01:" or stage.split(".")[0] in ("options:", "result", "report:")
        for point, stage in started
    )
    assert "lr-0.02: train.7f-1l.seed1: the same as in mini, copied" in output


def test_killed_it_goes_on_and_ends_the_same(finished, tmp_path):
    miniature.write_recipe(tmp_path)
    process = miniature.start(*SWEEP, cwd=tmp_path)
    logs = tmp_path / "runs/mini/by.lr/lr-0.02/systems/vanilla/seed1/checkpoints"
    deadline = time.monotonic() + 1500
    while not list(logs.glob("checkpoint_*_10.pt")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    if process.returncode != 0:  # on an idle machine it may have ended before
        assert process.returncode == 143
        assert "The same command goes on from here: fairseq-fixed run mini.yaml" in output
        assert " -m" in output
    miniature.run(*SWEEP, cwd=tmp_path)
    for point in POINTS:
        assert scores(tmp_path / "runs/mini/by.lr" / point) == scores(
            finished[0] / "runs/mini/by.lr" / point
        )


def test_a_search_by_the_valid_loss(tmp_path):
    pytest.importorskip("optuna")
    miniature.write_recipe(tmp_path)
    command = (
        "run", "mini.yaml", "-m", "--search", "3", "systems=[7f+1l]", "train.max_update=10",
        "train.lr=tag(log,interval(0.001,0.1))", "model.dropout=0.0,0.1",
    )  # fmt: skip
    output = miniature.run(*command, cwd=tmp_path)
    (place,) = (tmp_path / "runs/mini").glob("search.lr.dropout.*")
    trials = load(place / "search.json")["trials"]
    assert len(trials) == 3
    losses = [trial["valid_loss"] for trial in trials]
    assert losses == sorted(losses) and losses[0] < losses[-1]
    assert all(0.001 <= trial["values"]["train.lr"] <= 0.1 for trial in trials)
    assert sum(": corpus: starts" in line for line in output.splitlines()) == 1
    # the test set was not translated
    assert not list(place.glob("*/systems/*/*/generate*")) and "translate" not in output
    assert "train.lr=" in (place / "search.md").read_text()
    again = miniature.run(*command, cwd=tmp_path)
    assert ": starts" not in again and load(place / "search.json")["trials"] == trials
    more = miniature.run(*(w if w != "3" else "4" for w in command), cwd=tmp_path)
    more_trials = load(place / "search.json")["trials"]
    assert len(more_trials) == 4 and ": starts" in more
    assert len({trial["folder"] for trial in more_trials}) == 4
