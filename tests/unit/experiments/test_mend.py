import argparse

import pytest
import torch

from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.mend import checkpoints_to_average, mend, updates_of


def save(path, updates):
    state = {
        "args": argparse.Namespace(x=1),
        "model": {"w": torch.full((4,), float(updates))},
        "optimizer_history": [{"num_updates": updates}],
    }
    torch.save(state, path)
    return path


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])
    return path


def test_whole_checkpoints_stay_as_they_are(tmp_path):
    save(tmp_path / "checkpoint_1_10.pt", 10)
    last = save(tmp_path / "checkpoint_last.pt", 12)
    before = last.read_bytes()
    assert mend(tmp_path) == 12
    assert last.read_bytes() == before


def test_a_damaged_last_checkpoint_is_replaced_by_the_newest_that_loads(tmp_path, caplog):
    save(tmp_path / "checkpoint_1_10.pt", 10)
    save(tmp_path / "checkpoint_1_20.pt", 20)
    damaged = cut(save(tmp_path / "checkpoint_2_30.pt", 30))
    cut(save(tmp_path / "checkpoint_last.pt", 30))
    cut(save(tmp_path / "checkpoint_best.pt", 30))
    (tmp_path / "checkpoint_2_40.pt.tmp").write_text("half")
    assert mend(tmp_path) == 20
    assert updates_of(tmp_path / "checkpoint_last.pt") == 20
    assert not damaged.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint_1_10.pt",
        "checkpoint_1_20.pt",
        "checkpoint_last.pt",
    ]
    assert "checkpoint_last.pt is damaged" in caplog.text
    assert "going on from checkpoint_1_20.pt" in caplog.text


def test_a_newer_numbered_checkpoint_wins(tmp_path):
    save(tmp_path / "checkpoint_1_20.pt", 20)
    save(tmp_path / "checkpoint_last.pt", 10)
    assert mend(tmp_path) == 20
    assert updates_of(tmp_path / "checkpoint_last.pt") == 20


def test_without_any_checkpoint_it_starts_again(tmp_path):
    assert mend(tmp_path) == 0
    cut(save(tmp_path / "checkpoint_last.pt", 10))
    assert mend(tmp_path) == 0
    assert not list(tmp_path.iterdir())


def test_which_checkpoints_are_averaged(tmp_path):
    for epoch, updates in ((1, 10), (1, 20), (2, 30), (12, 100)):
        save(tmp_path / f"checkpoint_{epoch}_{updates}.pt", updates)
    save(tmp_path / "checkpoint_best.pt", 20)
    save(tmp_path / "checkpoint_last.pt", 100)
    names = [p.name for p in checkpoints_to_average(tmp_path, 2)]
    assert names == ["checkpoint_12_100.pt", "checkpoint_2_30.pt"]
    # At an epoch's end fairseq writes no numbered checkpoint: the last one stands for it.
    save(tmp_path / "checkpoint_last.pt", 110)
    names = [p.name for p in checkpoints_to_average(tmp_path, 2)]
    assert names == ["checkpoint_last.pt", "checkpoint_12_100.pt"]


def test_nothing_to_average(tmp_path):
    with pytest.raises(ExperimentError, match="there is no checkpoint"):
        checkpoints_to_average(tmp_path, 2)
