"""Training in several processes on the CPU, and in bfloat16, with real fairseq commands."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from fairseq_fixed.checkpoints import load_checkpoint
from fairseq_fixed.experiments.training_log import TrainingLog
from tests.integration.conftest import ROOT, TINY, TRAIN, run_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

UPDATES = 12


def points(out: str, tag: str) -> list[dict[str, float]]:
    """The figures of a JSON log, line by line."""
    lines = [line for line in out.splitlines() if f"| {tag} |" in line and "{" in line]
    return [json.loads(line[line.index("{") :]) for line in lines]


def log_of(out: str) -> TrainingLog:
    log = TrainingLog()
    for line in out.splitlines():
        log.feed(line)
    return log


def options(data, save, *more):
    return (
        *(data, "--user-dir", "fairseq_fixed", "--arch", "fixed_transformer"),
        *("--encoder-heads", "7f+1l", "--save-dir", save, *TINY, *TRAIN),
        # one process draws two batches' dropout one after the other, two processes beside one
        # another: without dropout they compute the same
        *("--dropout", "0", "--log-interval", "1", "--max-update", UPDATES, "--seed", "5", *more),
    )


def launch(*words, expect: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fairseq_fixed.cli", "launch", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == expect, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def test_two_processes_are_one_that_takes_two_batches_an_update(data_bin, tmp_path):
    one = run_command(
        "fairseq-train", *options(data_bin, tmp_path / "one", "--update-freq", "2")
    ).out
    command = ("fairseq-train", *options(data_bin, tmp_path / "two", "--update-freq", "1"))
    two = launch("--processes", "2", "--", *command)
    alone = run_command("fairseq-train", *options(data_bin, tmp_path / "alone")).out

    assert log_of(one).updates == log_of(two).updates == UPDATES
    expected, found = points(one, "train_inner"), points(two, "train_inner")
    assert len(expected) == len(found) == UPDATES
    for key in ("num_updates", "wpb", "bsz"):  # the same tokens and sentences in every update
        assert [p[key] for p in found] == [p[key] for p in expected]
    assert float(found[0]["wpb"]) > 1.5 * float(points(alone, "train_inner")[0]["wpb"])
    for key in ("loss", "nll_loss", "gnorm"):
        for one_point, two_point in zip(expected, found, strict=True):
            assert float(two_point[key]) == pytest.approx(float(one_point[key]), abs=2e-3)
    valid = [points(out, "valid")[-1]["valid_loss"] for out in (one, two)]
    assert float(valid[0]) == pytest.approx(float(valid[1]), abs=2e-3)
    models = [load_checkpoint(tmp_path / n / "checkpoint_last.pt")["model"] for n in ("one", "two")]
    assert models[0].keys() == models[1].keys()
    for name, tensor in models[0].items():
        # Adam divides by the gradient's size: where that is tiny, rounding shows
        torch.testing.assert_close(models[1][name], tensor, atol=2e-3, rtol=1e-3)


def test_bf16_trains_on_what_is_no_tpu(data_bin, tmp_path):
    found = {}
    for name, flags in (("half", ["--bf16"]), ("full", [])):
        command = ("fairseq-train", *options(data_bin, tmp_path / name))
        out = launch(*flags, "--", *command)
        found[name] = [float(p["loss"]) for p in points(out, "train_inner")]
        assert log_of(out).updates == UPDATES  # a log like any other of fairseq-train
    assert len(found["half"]) == UPDATES
    # eight bits of mantissa: near the full precision's losses, and not the same
    assert found["half"] != found["full"]
    assert found["half"] == pytest.approx(found["full"], abs=0.1)
    common = load_checkpoint(tmp_path / "half/checkpoint_last.pt")["cfg"]["common"]
    assert common["bf16"] and not common["tpu"]


def test_what_fails_in_the_processes_is_the_launchers_status(data_bin, tmp_path):
    # both languages: fairseq infers the pair from the folder, and drops what was said, where one
    # of them is missing
    pair = ("--source-lang", "zz", "--target-lang", "yy")
    command = ("fairseq-train", *options(data_bin, tmp_path, *pair))
    assert "dict.zz.txt" in launch("--processes", "2", "--", *command, expect=1)
    assert "launch starts fairseq-train, not rm" in launch("--", "rm", "-r", "x", expect=1)
