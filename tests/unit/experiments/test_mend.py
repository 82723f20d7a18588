import argparse

import pytest
import torch
import typer

from fairseq_fixed.experiments import verbs
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.mend import (
    checkpoints_to_average,
    has_ended,
    mend,
    updates_of,
)
from fairseq_fixed.experiments.plan import NOTHING_LEFT
from tests.unit.experiments.test_training_log import valid


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


def test_patience_is_read_from_the_log(tmp_path):
    losses = [(100, 9.0), (200, 8.0), (300, 8.1), (400, 8.2), (500, 8.0)]
    (tmp_path / "log").write_text("".join(valid(update, loss) for update, loss in losses))
    assert has_ended(tmp_path / "log", 500, 3)
    assert not has_ended(tmp_path / "log", 500, 4)
    assert not has_ended(tmp_path / "log", 400, 3)  # what came later is lost
    assert not has_ended(tmp_path / "none", 500, 1)


def test_time_that_has_run_out_is_read_from_the_log(tmp_path):
    start = "2024-01-01 10:00:00 | INFO | fairseq_cli.train | "
    ended = f"{start}Stopping training due to cumulative_training_time: 1.0 > stop_time_hours\n"
    done = f"{start}done training in 3600 seconds\n"
    (tmp_path / "log").write_text(valid(100, 9.0) + ended)
    assert not has_ended(tmp_path / "log", 100)  # killed before it had written everything
    (tmp_path / "log").write_text(valid(100, 9.0) + ended + done)
    assert has_ended(tmp_path / "log", 100)
    assert not has_ended(tmp_path / "log", 50)  # an older checkpoint than the last is all there is


def test_what_a_killed_training_has_left_to_do(tmp_path):
    save(tmp_path / "checkpoint_last.pt", 300)
    (tmp_path / "log").write_text(valid(100, 8.0) + valid(200, 8.1) + valid(300, 8.2))
    verbs.mend(tmp_path, max_update=1000, patience=3, log=tmp_path / "log")
    verbs.mend(tmp_path, max_update=1000)
    for options in (
        {"max_update": 300},
        {"max_update": 1000, "patience": 2, "log": tmp_path / "log"},
    ):
        with pytest.raises(typer.Exit) as caught:
            verbs.mend(tmp_path, **options)
        assert caught.value.exit_code == NOTHING_LEFT


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
