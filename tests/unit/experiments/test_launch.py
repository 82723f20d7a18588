import sys
import time

import pytest

from fairseq_fixed.experiments import commands, launch
from fairseq_fixed.experiments.errors import ExperimentError

RANK = """
import sys, time
rank = int(sys.argv[sys.argv.index("--distributed-rank") + 1])
open(f"{sys.argv[1]}/rank{rank}", "w").write(" ".join(sys.argv[2:]))
if rank == 1:
    sys.exit(3)
time.sleep(60)
"""


def test_a_rank_that_fails_ends_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "expand", lambda argv: [sys.executable, "-c", RANK])
    start = time.monotonic()
    assert launch.launch(["fairseq-train", str(tmp_path), "--lr", "1"], processes=3) == 3
    assert time.monotonic() - start < 40  # the others would have slept for 60 seconds
    words = (tmp_path / "rank1").read_text().split()
    assert words[:2] == ["--lr", "1"]
    assert words[words.index("--distributed-world-size") + 1] == "3"


def test_what_cannot_be_launched(monkeypatch):
    import torch

    with pytest.raises(ExperimentError, match="launch starts fairseq-train, not python"):
        launch.launch(["python", "x"])
    with pytest.raises(ExperimentError, match="at least 1, is 0"):
        launch.launch(["fairseq-train"], processes=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ExperimentError, match="4 processes need as many GPUs; 2 are visible"):
        launch.launch(["fairseq-train"], processes=4)


def test_every_rank_meets_the_others_at_one_port():
    one, two = (launch.rank_options(rank, 2, 1234) for rank in (0, 1))
    assert [a == b for a, b in zip(one, two, strict=True)].count(False) == 1
    assert "tcp://127.0.0.1:1234" in one and "gloo" in one
