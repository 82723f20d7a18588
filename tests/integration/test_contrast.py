"""The contrastive scorer beside fairseq-generate --score-reference, on a trained checkpoint."""

from __future__ import annotations

import json
import math
import re
import sys

import pytest

from fairseq_fixed.experiments.contrast import log_probabilities
from fairseq_fixed.experiments.contrast_run import run_contrast
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.trained import load
from tests.integration.conftest import ALL_SENTENCES, run_command, sentences

pytestmark = pytest.mark.slow


def test_scores_are_those_of_fairseq_generate(data_bin, fixed):
    checkpoint = fixed / "checkpoint_last.pt"
    out = run_command(
        "fairseq-generate",
        *(data_bin, "--path", checkpoint, "--user-dir", "fairseq_fixed", "--cpu"),
        *("--score-reference", "--batch-size", "7", *ALL_SENTENCES),
    ).out
    theirs = {
        int(i): float(score) for i, score in re.findall(r"^H-(\d+)\t(\S+)\t", out, re.MULTILINE)
    }
    pairs = sentences(80, 3)  # the test set
    ours = log_probabilities(load(checkpoint, data_bin, cpu=True), pairs, max_tokens=100)
    assert sorted(theirs) == list(range(80))
    for i, scored in enumerate(ours):
        assert scored.score("mean") / math.log(2) == pytest.approx(theirs[i], abs=1e-3)


def test_the_command_on_a_checkpoint(data_bin, fixed, tmp_path):
    pairs = sentences(40, 5)
    rows = []
    for source, target in pairs:
        words = target.split()
        wrong = [*words[:-1], "A" if words[-1] != "A" else "B"]  # the last word is not the source's
        rows.append(f"{source}\t{target}\t{' '.join(wrong)}\tlast\t{len(words)}\n")
    (tmp_path / "set.tsv").write_text("".join(rows))
    checkpoint = fixed / "checkpoint_last.pt"
    out = run_command(
        sys.executable,
        *("-m", "fairseq_fixed.cli", "contrast", checkpoint, tmp_path / "set.tsv"),
        *("--data", data_bin, "--cpu", "--score", "sum", "--out", tmp_path / "out.json"),
        *("--scores", tmp_path / "scores.tsv"),
    ).out
    assert str(tmp_path / "out.json") in out
    report = json.loads((tmp_path / "out.json").read_text())
    (model,) = report["models"]
    assert model["pairs"]["total"] == 40 == model["by_type"]["last"]["total"]
    lines = (tmp_path / "scores.tsv").read_text().split("\n")[1:-1]
    right = [float(a) > float(b) for *_, a, b in (line.split("\t") for line in lines)]
    assert sum(right) == model["pairs"]["right"]
    again = run_contrast(
        checkpoint, tmp_path / "set.tsv", data=data_bin, how="sum", max_tokens=30, cpu=True
    )
    assert again.report["models"][0]["pairs"] == model["pairs"]
    with pytest.raises(ExperimentError, match="a checkpoint needs --data"):
        run_contrast(checkpoint, tmp_path / "set.tsv")
    with pytest.raises(ExperimentError, match="belong to a run's folder"):
        run_contrast(checkpoint, tmp_path / "set.tsv", data=data_bin, system="vanilla")
    with pytest.raises(ExperimentError, match="is not the folder of a run"):
        run_contrast(tmp_path, tmp_path / "set.tsv")
