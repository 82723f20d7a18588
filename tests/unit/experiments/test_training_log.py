import json

import pytest

from fairseq_fixed.experiments.plan import Stage
from fairseq_fixed.experiments.progress import LiveView, PlainView, StageProgress, format_seconds
from fairseq_fixed.experiments.training_log import Tail, read_training_log


def line(tag, stats):
    return f"2024-01-01 10:00:00 | INFO | {tag} | {json.dumps(stats)}\n"


def train(update, loss, wps=1000.0, wall=None):
    return line(
        "train_inner",
        {
            "epoch": 1, "update": 0.1, "loss": str(loss), "nll_loss": str(loss - 1),
            "wps": str(wps), "num_updates": str(update), "wall": str(wall or update),
        },
    )  # fmt: skip


def valid(update, loss):
    return line(
        "valid",
        {"epoch": 1, "valid_loss": str(loss), "valid_nll_loss": str(loss - 1),
         "valid_num_updates": str(update)},
    )  # fmt: skip


HEAD = (
    "2024-01-01 10:00:00 | INFO | fairseq_cli.train | num. shared model params: 1,234 "
    "(num. trained: 1,234)\n"
    "2024-01-01 10:00:00 | WARNING | fairseq.tasks.fairseq_task | 12 samples have invalid sizes "
    "and will be skipped, max_positions=(9, 9), first few sample ids=[1]\n"
    "no log line at all\n"
)


def read(tmp_path, text):
    file = tmp_path / "train.log"
    file.write_text(text)
    return read_training_log(file)


def at(time, tag, message):
    return f"2024-01-01 {time} | INFO | {tag} | {message}\n"


def test_seconds_of_a_resumed_training_go_on(tmp_path):
    """fairseq writes `wall` 0 from the first update after a checkpoint was loaded."""
    text = train(10, 9, wall=100) + train(20, 8, wall=200) + valid(20, 8)
    text += train(30, 8, wall=300)  # lost: the checkpoint is that of update 20
    for begun, points in (
        ("23:50:00", (("23:50:30", 25), ("23:51:40", 30))),
        ("12:00:00", (("12:00:50", 40),)),
    ):
        loaded = 20 if points[0][1] == 25 else 30
        text += at(
            begun, "fairseq.trainer", f"Loaded checkpoint a/b.pt (epoch 2 @ {loaded} updates)"
        )
        text += at(begun, "fairseq.trainer", "begin training epoch 2")
        for time, update in points:
            text += train(update, 7, wall="0").replace("10:00:00", time)
            text += at(time, "fairseq.trainer", "begin training epoch 3")
    text += valid(40, 6)
    log = read(tmp_path, text)
    assert {u: p["wall"] for u, p in log.train.items()} == {
        10: 100, 20: 200, 25: 230, 30: 300, 40: 350,
    }  # fmt: skip
    assert [p["wall"] for p in log.curve()] == [200, 350]
    assert log.wall == 350


def test_a_training_from_another_model_starts_at_nought(tmp_path):
    text = at("10:00:00", "fairseq.trainer", "Loaded checkpoint m.pt (epoch 1 @ 0 updates)")
    text += at("10:00:05", "fairseq_cli.train", "Start iterating over samples")
    text += train(10, 9, wall="0").replace("10:00:00", "10:00:45")
    assert read(tmp_path, text).wall == 40


def test_what_was_lost_behind_a_checkpoint_does_not_count(tmp_path):
    text = train(10, 9, wall=10) + valid(10, 9) + train(20, 4, wall=20) + valid(20, 4)
    text += at("10:00:00", "fairseq.trainer", "Loaded checkpoint a.pt (epoch 2 @ 10 updates)")
    assert read(tmp_path, text).updates == 10
    text += at("10:00:00", "fairseq.trainer", "begin training epoch 2")
    text += train(15, 8, wall=0) + valid(15, 8)  # ended sooner than it was killed before
    log = read(tmp_path, text)
    assert log.updates == 15 and log.best_valid == (15, 7.0) and log.last_valid == 7.0
    assert [p["update"] for p in log.curve()] == [10, 15]


def test_figures(tmp_path):
    text = HEAD + train(10, 9, wps=100) + train(20, 8, wps=900) + valid(20, 7.5)
    text += train(30, 7, wps=1100) + valid(30, 7.0)
    text += "2024-01-01 10:00:00 | INFO | fairseq_cli.train | done training in 3.0 seconds\n"
    log = read(tmp_path, text)
    assert log.parameters == 1234 and log.skipped == 12 and log.finished
    assert log.updates == 30
    assert log.tokens_per_second == 900  # the first left out, and the one after a validation
    assert log.last_valid == 6.0 and log.best_valid == (30, 6.0)
    assert log.wall == 30
    assert [p["update"] for p in log.curve()] == [20, 30]
    assert log.curve()[0]["wall"] == 20


@pytest.mark.parametrize(
    ("message", "ended"),
    [
        ("Stopping training due to num_updates: 30 >= max_update: 30", "updates"),
        (
            "Stopping training due to cumulative_training_time: 1.01 > stop_time_hours: 1.0 "
            "hour(s)",
            "hours",
        ),
        ("early stop since valid performance hasn't improved for last 5 runs", "patience"),
        ("Start iterating over samples", None),
    ],
)
def test_what_ended_it(tmp_path, message, ended):
    said = f"2024-01-01 10:00:00 | INFO | fairseq_cli.train | {message}\n"
    assert read(tmp_path, train(30, 7) + said + valid(30, 7)).ended == ended


def test_the_last_of_several_endings_counts(tmp_path):
    said = "2024-01-01 10:00:00 | INFO | fairseq_cli.train | "
    hours = f"{said}Stopping training due to cumulative_training_time: 1.0 > 0.9\n"
    updates = f"{said}Stopping training due to num_updates: 40 >= max_update: 40\n"
    assert read(tmp_path, hours + train(40, 7) + updates).ended == "updates"  # went on


def test_validation_scores(tmp_path):
    scored = line("valid", {"valid_loss": "3", "valid_bleu": "12.5", "valid_num_updates": "20"})
    log = read(tmp_path, valid(10, 4) + scored)
    assert log.curve()[1] == {"update": 20, "loss": 3.0, "bleu": 12.5}
    assert "bleu" not in log.curve()[0]


def test_the_time_of_validations_is_no_time_of_training(tmp_path):
    text = HEAD + train(10, 9, wps=1.0)
    for update in range(20, 80, 20):  # the clock runs on from the validation to the next line
        text += train(update, 8, wps=1000.0) + valid(update, 7) + train(update + 10, 8, wps=200.0)
    assert read(tmp_path, text).tokens_per_second == 1000.0
    only = HEAD + train(10, 9, wps=1.0) + valid(10, 8) + train(20, 9, wps=3.0)
    assert read(tmp_path, only).tokens_per_second == 1.0  # what there is


def test_after_a_resume_the_later_line_counts(tmp_path):
    log = read(tmp_path, valid(10, 9.0) + valid(20, 5.0) + valid(20, 6.0) + valid(30, 5.5))
    assert log.valid[20]["loss"] == 6.0
    assert log.best_valid == (30, 4.5)


def test_damaged_lines_are_passed_over(tmp_path):
    log = read(
        tmp_path, line("valid", {"valid_loss": "x"}) + "a | b | valid | {half\n" + valid(5, 2)
    )
    assert list(log.valid) == [5]


def test_tail_waits_for_the_end_of_a_line_and_notices_a_fresh_start(tmp_path):
    file = tmp_path / "f"
    tail = Tail(file)
    assert tail.lines() == []
    file.write_text("one\ntw")
    assert tail.lines() == ["one"]
    with file.open("a") as out:
        out.write("o\n")
    assert tail.lines() == ["two"]
    file.write_text("a\n")
    assert tail.lines() == ["a"]
    assert Tail(file, at_end=True).lines() == []


def test_progress_of_a_training_in_plain_lines(tmp_path, monkeypatch):
    from fairseq_fixed.experiments import progress as module

    (tmp_path / "logs").mkdir()
    stage = Stage("train.x.seed1", ("x",), steps=100)
    progress = StageProgress(stage, tmp_path)
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    log = tmp_path / stage.log
    log.write_text(train(10, 9))
    progress.look()
    now += 10
    with log.open("a") as out:
        out.write(train(20, 8, wps=1234) + valid(20, 7.5))
    progress.look()
    assert progress.figures() == {
        "done": "20/100",
        "tokens/s": "1,234",
        "loss": "7.000",
        "valid": "6.500",
        "left": "1 min 20 s",
    }
    lines = []
    view = PlainView(lines.append)
    view.update([progress], 0, 1)
    assert not lines
    now += 21
    view.update([progress], 0, 1)
    assert "train.x.seed1: 20/100, 1,234 tokens/s, loss 7.000, valid loss 6.500, " in lines[0]


def test_time_left_forgets_a_pause(tmp_path, monkeypatch):
    from fairseq_fixed.experiments import progress as module

    (tmp_path / "logs").mkdir()
    stage = Stage("train.x.seed1", ("x",), steps=1000)
    progress = StageProgress(stage, tmp_path)
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    log = (tmp_path / stage.log).open("a")

    def go_on(updates):  # two seconds an update
        nonlocal now
        for update in updates:
            now += 20
            print(train(update, 9), end="", file=log, flush=True)
            progress.look()

    go_on(range(10, 310, 10))
    assert progress.left == pytest.approx(700 * 2)
    now += 7200  # stopped, and told to continue
    go_on(range(310, 320, 10))
    assert progress.left > 10_000
    go_on(range(320, 500, 10))
    assert progress.left == pytest.approx((1000 - 490) * 2)


def test_progress_of_what_runs_already_is_told_at_one_look(tmp_path):
    (tmp_path / "logs").mkdir()
    stage = Stage("train.x.seed1", ("x",), steps=100)
    (tmp_path / stage.log).write_text(train(10, 9, wall=40) + train(20, 8, wps=1234, wall=80))
    progress = StageProgress(stage, tmp_path, begun=True)
    assert progress.describe() == ""
    progress.look()
    assert progress.describe() == "20/100, 1,234 tokens/s, loss 7.000, 5 min 20 s left"
    fresh = StageProgress(stage, tmp_path)  # what follows in this log is told, no more
    fresh.look()
    assert fresh.describe() == ""


def test_progress_of_a_translation_counts_lines(tmp_path):
    stage = Stage("translate.x.seed1", ("x",), watch="generate.txt")
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "data/raw/test.keys").write_text("k\n" * 3)
    (tmp_path / "data/raw/test.xx").write_text("x\n" * 4)
    progress = StageProgress(stage, tmp_path)
    (tmp_path / "generate.txt").write_text("H-1\t-1\tx\nS-1\tx\nH-0\t-1\ty\n")
    progress.look()
    assert progress.figures()["done"] == "2/4"


def test_the_live_table_shows_what_fits_the_terminal(tmp_path):
    from io import StringIO

    from rich.console import Console

    (tmp_path / "logs").mkdir()
    stage = Stage("train.8l-tisa_kernels-5.seed1", ("x",), steps=100)
    (tmp_path / stage.log).write_text(train(10, 9) + valid(10, 7.5) + train(20, 8, wps=1234))
    progress = StageProgress(stage, tmp_path, begun=True)
    progress.look()
    counts = []
    for width in range(50, 141, 5):
        console = Console(width=width, file=StringIO(), force_terminal=True, color_system=None)
        view = LiveView(console)
        view.open({})
        view.update([progress], 5, 79)
        view.close()
        head, row = console.file.getvalue().split("\n")[1:3]
        assert stage.name in row and "1 min 20 s" in row and "…" not in row, width
        counts.append(
            sum(name in head for name in ("done)", "tokens/s", "loss", "valid", "elapsed"))
        )
    assert counts == sorted(counts) and counts[-1] == 5
    assert "79 done)" in head


def test_durations():
    assert [format_seconds(s) for s in (0.4, 59, 61, 3600, 7500)] == [
        "0 s", "59 s", "1 min 01 s", "1 h 00 min", "2 h 05 min",
    ]  # fmt: skip
