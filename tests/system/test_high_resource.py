"""WMT19's recipe, whole, on a miniature in the original's layout: shards, bf16, two processes."""

import json

import miniature
import pytest

from tests.unit.experiments.test_archives import miniature_wmt19

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

SMALL = (
    "data.path=given", "subwords.size=90", "subwords.character_coverage=1",
    "model.layers=1", "model.dim=32", "model.ffn=64",
    "train.max_tokens=1024", "train.batch_tokens=4096", "train.max_update=8", "train.save_every=4",
    "train.average=2", "train.warmup_updates=2", "train.log_every=1", "train.shards=3",
    "translate.beam=2", "score.bootstrap=20", "score.trials=20", "systems=[vanilla,7f+1l]",
)  # fmt: skip


@pytest.mark.parametrize("more", [("train.processes=2", "train.precision=bf16"), ()])
def test_the_recipe_runs_from_archives_to_a_report(tmp_path, more):
    """In two processes and bfloat16; and as it is, but in the fp32 that every CPU has."""
    miniature_wmt19(tmp_path / "given")
    options = more or ("train.precision=fp32",)
    miniature.run("run", "wmt19_en_de", *SMALL, *options, "threads=1", cwd=tmp_path)
    run = tmp_path / "runs/wmt19_en_de"
    log = (run / "logs/train.7f-1l.seed1.log").read_text()
    for folder in ("data/bin", "data/bin2", "data/bin3"):  # a shard an epoch
        assert f"25 examples from: {folder}/train.en-de.en" in log
    result = json.loads((run / "systems/7f-1l/seed1/result.json").read_text())
    assert result["training"]["updates"] == 8
    assert result["test"]["sentences"] == 11
    report = (run / "report/report.md").read_text()
    assert "| vanilla |" in report and "| 7f+1l |" in report
    if more:
        assert "distributed init (rank 0): tcp://127.0.0.1:" in log
        assert "'bf16': True" in log and "'tpu': False" in log
    assert "All is done already." in miniature.run(
        "run", "wmt19_en_de", *SMALL, *options, "threads=1", cwd=tmp_path
    )
