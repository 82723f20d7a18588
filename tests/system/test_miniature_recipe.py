import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import miniature
import pytest
import torch

from fairseq_fixed.experiments import paths
from fairseq_fixed.experiments.training_log import read_training_log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SLUGS = ("vanilla", "7f-1l")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run that nothing interrupted: the folder it was started in, what it printed."""
    folder = tmp_path_factory.mktemp("finished")
    miniature.write_recipe(folder)
    return folder, miniature.run("run", "mini.yaml", cwd=folder)


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def assert_same_results(run: Path, other: Path) -> None:
    for slug in SLUGS:
        one, two = run / f"systems/{slug}/seed1", other / f"systems/{slug}/seed1"
        assert load(one / paths.SCORE) == load(two / paths.SCORE)
        assert (one / paths.HYPOTHESES).read_bytes() == (two / paths.HYPOTHESES).read_bytes()
        first = torch.load(one / paths.AVERAGED, weights_only=True)["model"]
        second = torch.load(two / paths.AVERAGED, weights_only=True)["model"]
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
        logs = [read_training_log(f / f"logs/train.{slug}.seed1.log") for f in (run, other)]
        losses = [
            {u: (p["loss"], p["nll_loss"]) for u, p in sorted(log.valid.items())} for log in logs
        ]
        assert losses[0] == losses[1]
        assert sorted(losses[0]) == list(range(5, 41, 5))
    assert load(run / paths.SIGNIFICANCE) == load(other / paths.SIGNIFICANCE)


def test_prints_table_translations_and_the_way_to_the_report(finished):
    folder, output = finished
    assert "7f+1l" in output and "vanilla" in output
    assert "BLEU" in output and "chrF" in output and "tokens/s" in output
    assert "reference" in output
    assert str(folder / "runs/mini/report/report.md") in output
    assert "train.7f-1l.seed1: done in" in output


def test_leaves_results_report_and_only_the_needed_checkpoints(finished):
    run = finished[0] / "runs/mini"
    report = load(run / "report/report.json")
    rows = {row["system"]: row for row in report["rows"]}
    assert list(rows) == ["vanilla", "7f+1l"]
    assert rows["vanilla"]["baseline"] and not rows["7f+1l"]["baseline"]
    # 7 of 8 heads without queries and keys: 2 · (d² + d) · 7/8 parameters fewer in one layer.
    saved = rows["vanilla"]["parameters"] - rows["7f+1l"]["parameters"]
    assert saved == 2 * (32 * 32 + 32) * 7 // 8
    assert rows["7f+1l"]["updates"] == [40]
    assert rows["7f+1l"]["tokens_per_second"] > 0
    assert set(rows["7f+1l"]["differences"]) == {"bleu", "chrf"}
    assert len(report["samples"]) == 2
    assert (run / "report/curves.png").read_bytes().startswith(b"\x89PNG")
    result = load(run / "systems/7f-1l/seed1/result.json")
    assert result["heads"] == "7f+1l" and result["seed"] == 1
    assert result["test"]["sentences"] == 29  # no multiple of 8: fairseq drops none of them
    assert [point["update"] for point in result["curve"]] == list(range(5, 41, 5))
    assert result["scores"]["bleu"]["signature"].startswith("nrefs:1|")
    assert result["training"]["ended"] == "updates"
    assert result["statistics"]["sentences"] == 29
    assert sum(bucket["sentences"] for bucket in result["lengths"]["by_training"]) == 29
    assert (run / "report/lengths.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "systems/7f-1l/seed1/tensorboard").rglob("events.*"))
    kept = {p.name for p in (run / "systems/7f-1l/seed1/checkpoints").iterdir()}
    assert len(kept) <= 3 + 2, kept  # to average; last and best


def test_run_again_says_that_all_is_done_within_seconds(finished):
    folder, _ = finished
    before = {p: p.stat().st_mtime_ns for p in (folder / "runs/mini/systems").rglob("*.pt")}
    start = time.monotonic()
    output = miniature.run("run", "mini.yaml", cwd=folder)
    assert time.monotonic() - start < 15
    assert "All is done already." in output and "BLEU" in output
    assert before == {p: p.stat().st_mtime_ns for p in (folder / "runs/mini/systems").rglob("*.pt")}
    status = miniature.run("status", "runs/mini", cwd=folder)
    assert "18 of 18 stages done" in status


def test_a_changed_setting_redoes_only_what_depends_on_it(finished, tmp_path):
    shutil.copytree(finished[0] / "runs/mini", tmp_path / "copy")
    options = ("score.trials=90", f"out={tmp_path / 'copy'}")
    output = miniature.run("run", "mini.yaml", *options, cwd=finished[0])
    begun = [line.split()[1] for line in output.splitlines() if ": starts" in line]
    # recipe.yaml, which the results and the report show, has changed, too
    assert begun[0] == "options:"
    assert begun[1:] == ["result.vanilla.seed1:", "result.7f-1l.seed1:", "compare:", "report:"]
    assert "compare: starts (again: --trials 100 → 90)" in output
    assert "18 of 18 stages done" in miniature.run("status", "copy", cwd=tmp_path)


def test_a_contrastive_set_is_put_to_all_models_of_the_run(finished, tmp_path):
    run = finished[0] / "runs/mini"
    sides = [(run / f"data/raw/test.{x}").read_text().split("\n")[:-1] for x in ("es", "en")]
    rows = []
    for source, reference in zip(*sides, strict=True):
        *rest, last = reference.split()
        wrong = "six" if last != "six" else "dog"
        rows.append(f"{source}\t{reference}\t{' '.join([*rest, wrong])}\tlast\t{len(rest)}\n")
    (tmp_path / "set.tsv").write_text("".join(rows))
    miniature.run("contrast", str(run), "set.tsv", "--cpu", "--out", "out.json", cwd=tmp_path)
    models = load(tmp_path / "out.json")["models"]
    assert [(m["system"], m["seed"]) for m in models] == [("vanilla", 1), ("7f+1l", 1)]
    for model in models:
        assert model["pairs"]["total"] == 29 == model["by_type"]["last"]["total"]
        low, high = model["pairs"]["interval"]
        assert 0 <= low <= model["pairs"]["accuracy"] <= high <= 1
    text = miniature.run("contrast", str(run), "set.tsv", "--system", "7f+1l", cwd=tmp_path)
    assert "| 7f+1l, seed 1 | 29 |" in text and "vanilla" not in text


def test_what_a_run_has_finished_is_collected_without_touching_it(finished, tmp_path):
    run = finished[0] / "runs/mini"
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    miniature.run("collect", str(run), "--results", "all", cwd=tmp_path)
    assert before == {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    assert len(list((tmp_path / "all/mini").glob("*.seed1.*.json"))) == 2
    for view in ("table", "trainings", "speed", "length"):
        assert "7f+1l" in miniature.run("report", "all", "--view", view, cwd=tmp_path)


def test_commands_run_by_hand_in_an_emptied_folder(finished, tmp_path):
    run = finished[0] / "runs/mini"
    shutil.copy(run / paths.COMMANDS, tmp_path / paths.COMMANDS)
    done = subprocess.run(
        ["bash", str(tmp_path / paths.COMMANDS)],
        cwd="/",
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert_same_results(run, tmp_path)
    assert (tmp_path / paths.RECIPE).read_text() == (run / paths.RECIPE).read_text()
    assert (tmp_path / "report/report.md").is_file()


def started(run: Path, stage: str, since: float) -> bool:
    if stage.startswith("train"):  # some way into the training
        folder = run / "systems" / stage.split(".")[1] / "seed1/checkpoints"
        files = [p for p in folder.glob("checkpoint_*_*.pt") if int(p.stem.split("_")[2]) >= 15]
    else:
        files = [run / f".state/stamps/{stage}.started.json"]
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # fairseq has pruned it
            if file.stat().st_mtime > since:
                return True
    return False


def children(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_when_started(folder: Path, stage: str, number: int, *redo: str) -> int:
    since = time.time()
    process = miniature.start("run", "mini.yaml", *redo, cwd=folder)
    deadline = time.monotonic() + 600  # a busy machine is slow to start commands
    while not started(folder / "runs/mini", stage, since):
        if process.poll() == 0 and not redo:
            # a quick stage ended beside the one that was killed before: run it again
            process.communicate()
            return kill_when_started(folder, stage, number, "--redo", stage)
        assert process.poll() is None, f"ended before {stage}: {process.communicate()[0]}"
        assert time.monotonic() < deadline, f"{stage} never started"
        time.sleep(0.01)
    offspring = children(process.pid)
    process.send_signal(number)
    process.communicate(timeout=120)
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in offspring):
        assert time.monotonic() < deadline, f"{stage}: a stage outlived the run"
        time.sleep(0.05)
    return process.returncode


def test_killed_at_every_stage_it_ends_with_the_same_result(finished, tmp_path):
    miniature.write_recipe(tmp_path)
    stages = [
        ("options", signal.SIGKILL),
        ("corpus", signal.SIGKILL),
        ("subwords", signal.SIGINT),
        ("preprocess", signal.SIGKILL),
        ("train.vanilla.seed1", signal.SIGKILL),
        ("train.7f-1l.seed1", signal.SIGTERM),
        ("average.7f-1l.seed1", signal.SIGKILL),
        ("translate.vanilla.seed1", signal.SIGKILL),
        ("hypotheses.7f-1l.seed1", signal.SIGKILL),
        ("score.vanilla.seed1", signal.SIGINT),
        ("result.vanilla.seed1", signal.SIGKILL),
        ("compare", signal.SIGKILL),
        ("report", signal.SIGKILL),
    ]
    for stage, number in stages:
        status = kill_when_started(tmp_path, stage, number)
        expected = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}
        assert status == expected[number], stage
    miniature.run("run", "mini.yaml", cwd=tmp_path)
    assert_same_results(finished[0] / "runs/mini", tmp_path / "runs/mini")
