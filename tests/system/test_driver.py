"""A recipe's driver, run by bash alone on a miniature corpus."""

import os
import subprocess

import miniature
import pytest

from fairseq_fixed.experiments.mend import updates_of
from tests.unit.experiments.test_archives import miniature_multi30k

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

SMALL = (
    "subwords.size=60", "model.layers=1", "model.dim=32", "model.ffn=64", "train.max_tokens=1024",
    "train.max_update=12", "train.save_every=4", "train.average=2", "train.warmup_updates=2",
    "translate.beam=2", "score.bootstrap=20", "score.trials=20",
)  # fmt: skip


def bash(file, folder, cwd):
    done = subprocess.run(
        ["bash", str(file), str(folder)],
        cwd=cwd,
        # as in a shell that knows nothing of the project but where its Python is
        env={**os.environ, **miniature.environment(), "PATH": miniature.path()},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def test_what_a_dry_run_prints_is_a_whole_experiment(tmp_path):
    miniature_multi30k(tmp_path / "given")
    text = miniature.run(
        "run", "multi30k_de_en_small", "data.path=given", *SMALL, "--dry-run", cwd=tmp_path
    )
    driver = tmp_path / "driver.sh"
    driver.write_text(text)
    assert not (tmp_path / "runs").exists()  # a dry run writes nothing
    output = bash(driver, "out", tmp_path)
    run = tmp_path / "out"
    for system in ("vanilla", "7f-1l"):
        lines = (run / f"systems/{system}/seed1/hypotheses.txt").read_text().splitlines()
        assert len(lines) == 11
    assert (run / "report/report.md").is_file()
    # sacrebleu's own table, at the end
    tail = output[output.rindex("done training") :] if "done training" in output else output
    assert "hypotheses.txt" in tail and "BLEU" in tail
    # it can be started again: nothing trips over what is there
    before = (run / "systems/vanilla/seed1/hypotheses.txt").read_bytes()
    checkpoint = run / "systems/vanilla/seed1/checkpoints/checkpoint_last.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])  # as a kill may leave it
    bash(driver, "out", tmp_path)
    assert updates_of(checkpoint) == 12  # what has ended does not go on by a step each time
    assert (run / "systems/vanilla/seed1/hypotheses.txt").read_bytes() == before
