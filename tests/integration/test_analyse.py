"""`fairseq-fixed analyse` on checkpoints that fairseq-train wrote."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from fairseq_fixed.analysis import trained
from fairseq_fixed.cli import app
from tests.conftest import said

pytestmark = pytest.mark.slow


def run(*words):
    return CliRunner().invoke(app, ["analyse", *map(str, words)])


def test_a_vanilla_model_is_read_as_learned_heads(vanilla):
    encoder, task = trained.load_encoder(vanilla / "checkpoint_last.pt")
    assert {str(spec) for spec in encoder.layers[0].self_attn.specs} == {"learned"}
    assert len(trained.read_sentences(task, "valid", 7)) == 7
    assert len(trained.read_sentences(task, "valid", 1000)) == 60
    with pytest.raises(trained.CheckpointError, match="'dev'"):
        trained.read_sentences(task, "dev", 7)
    with pytest.raises(trained.CheckpointError, match="--data"):
        trained.load_encoder(vanilla / "checkpoint_last.pt", "nowhere")


def test_heads(vanilla, fixed, data_bin, tmp_path):
    kinds = {}
    for name, save in (("vanilla", vanilla), ("fixed", fixed)):
        out, picture = tmp_path / f"{name}.json", tmp_path / f"{name}.png"
        done = run(
            *("heads", save / "checkpoint_last.pt", "--data", data_bin, "--sentences", "20"),
            *("--json", out, "--figure", picture),
        )
        assert done.exit_code == 0, done.output
        assert picture.stat().st_size > 1000
        profiles = json.loads(out.read_text())
        assert len(profiles) == 16
        kinds[name] = {(p["kind"], p["pattern"], p["difference"] < 1e-4) for p in profiles}
    assert {kind for kind, _, _ in kinds["vanilla"]} == {"learned"}
    assert ("previous", "previous", True) in kinds["fixed"]


def test_positions(vanilla, tmp_path):
    checkpoint = vanilla / "checkpoint_last.pt"
    done = run("positions", checkpoint, "--length", 20, "--json", tmp_path / "p.json")
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "p.json").read_text())
    assert content["invariance"][0]["r2"] == pytest.approx(1, abs=1e-5)  # sinusoids
    assert len(content["invariance"]) == 9
    done = run("positions", checkpoint, "--figure", tmp_path / "p.png")
    assert done.exit_code == 2 and "this model has none" in said(done)
    done = run("positions", checkpoint, "--length", 5, "--border", 2)
    assert done.exit_code == 2 and "leaves 1 of 5" in said(done)
