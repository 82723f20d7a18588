import json
import os

import pytest

from fairseq_fixed.experiments.plan import Plan, Stage
from fairseq_fixed.experiments.stamps import FileHashes, Stamps, write_json


@pytest.fixture
def stage(tmp_path):
    (tmp_path / "in").write_text("one")
    return Stage("s", ("tool", "--n", "1"), inputs=("in",), outputs=("out",), resumable=True)


def finish(folder, stage):
    stamps = Stamps(folder)
    stamps.start(stage)
    (folder / "out").write_text("result")
    stamps.finish(stage, 2.0)


def state(folder, stage):
    return Stamps(folder).state(stage)


def test_life_of_a_stage(tmp_path, stage):
    assert state(tmp_path, stage).state == "todo"
    Stamps(tmp_path).start(stage)
    assert state(tmp_path, stage).state == "partial"
    Stamps(tmp_path).spend(stage, 3.0)
    assert state(tmp_path, stage).seconds == 3.0
    finish(tmp_path, stage)
    done = state(tmp_path, stage)
    assert (done.state, done.seconds) == ("done", 2.0)
    Stamps(tmp_path).forget(stage)
    assert state(tmp_path, stage).state == "todo"


def test_a_started_stage_that_cannot_resume_is_to_do(tmp_path):
    stage = Stage("s", ("tool",))
    Stamps(tmp_path).start(stage)
    assert state(tmp_path, stage).state == "todo"


def test_changes_are_named(tmp_path, stage):
    finish(tmp_path, stage)
    changed = Stage("s", ("tool", "--n", "2", "--flag"), stage.inputs, stage.outputs)
    assert state(tmp_path, changed).state == "stale"
    assert state(tmp_path, changed).why == "--n 1 → 2; --flag added"
    (tmp_path / "in").write_text("two")
    assert state(tmp_path, stage).why == "in has changed"
    (tmp_path / "in").write_text("one")
    assert state(tmp_path, stage).state == "done"
    (tmp_path / "out").unlink()
    assert state(tmp_path, stage).why == "its output is missing"


def test_a_started_stage_with_other_settings_does_not_resume(tmp_path, stage):
    Stamps(tmp_path).start(stage)
    changed = Stage("s", ("tool", "--n", "2"), stage.inputs, stage.outputs, resumable=True)
    assert state(tmp_path, changed).state == "stale"


def test_a_number_that_may_grow_resumes_what_is_there(tmp_path, stage):
    def with_n(n, *more):
        return Stage(
            "s", ("tool", "--n", str(n), *more), ("in",), ("out",), resumable=True, grows="--n"
        )

    finish(tmp_path, with_n(5))
    assert state(tmp_path, with_n(7)).state == "partial"
    assert state(tmp_path, with_n(7)).why == "--n 5 → 7"
    assert state(tmp_path, with_n(3)).state == "stale"
    assert state(tmp_path, with_n(7, "--other")).state == "stale"
    assert state(tmp_path, with_n(5)).state == "done"
    Stamps(tmp_path).start(with_n(7))
    assert state(tmp_path, with_n(7)).state == "partial"
    assert state(tmp_path, with_n(9)).state == "partial"
    (tmp_path / "in").write_text("two")
    assert state(tmp_path, with_n(9)).state == "stale"


def test_another_version_of_a_tool(tmp_path, stage):
    versioned = Stage("s", stage.argv, stage.inputs, stage.outputs, tools=("numpy",))
    finish(tmp_path, versioned)
    stamp = tmp_path / ".state/stamps/s.json"
    content = json.loads(stamp.read_text())
    content["tools"]["numpy"], content["hash"] = "0.1", "other"
    stamp.write_text(json.dumps(content))
    assert state(tmp_path, versioned).why.startswith("numpy 0.1 → ")


def test_damaged_stamps_count_as_none(tmp_path, stage):
    finish(tmp_path, stage)
    (tmp_path / ".state/stamps/s.json").write_text("{half")
    assert state(tmp_path, stage).state == "todo"


def test_survey_waits_for_what_comes_before(tmp_path, stage):
    last = Stage("t", ("tool",), inputs=("out",))
    plan = Plan([stage, last])
    assert {n: s.state for n, s in Stamps(tmp_path).survey(plan).items()} == {
        "s": "todo",
        "t": "waiting",
    }
    finish(tmp_path, stage)
    assert Stamps(tmp_path).survey(plan)["t"].state == "todo"


class TestFileHashes:
    def test_content_counts_not_time(self, tmp_path):
        hashes = FileHashes(tmp_path, tmp_path / "store.json")
        (tmp_path / "f").write_text("a")
        first = hashes.of("f")
        os.utime(tmp_path / "f", (1, 1))
        assert hashes.of("f") == first
        (tmp_path / "f").write_text("b")
        assert hashes.of("f") != first
        assert hashes.of("missing") is None

    def test_unchanged_files_are_not_read_again(self, tmp_path, monkeypatch):
        (tmp_path / "f").write_text("a")
        hashes = FileHashes(tmp_path, tmp_path / "store.json")
        first = hashes.of("f")
        hashes.save()
        again = FileHashes(tmp_path, tmp_path / "store.json")
        monkeypatch.setattr(type(tmp_path), "open", lambda *a, **k: pytest.fail("read again"))
        assert again.of("f") == first

    def test_folders_by_names_and_contents(self, tmp_path):
        hashes = FileHashes(tmp_path, tmp_path / "store.json")
        (tmp_path / "d/e").mkdir(parents=True)
        (tmp_path / "d/e/f").write_text("a")
        first = hashes.of("d/")
        (tmp_path / "d/g").write_text("a")
        second = hashes.of("d/")
        (tmp_path / "d/g").rename(tmp_path / "d/h")
        assert len({first, second, hashes.of("d/")}) == 3


def test_write_json_leaves_the_old_file_when_it_fails(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert json.loads(file.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_what_runs_is_what_the_present_run_has_started(tmp_path):
    stamps = Stamps(tmp_path)
    stage = Stage(name="a", argv=("true",), outputs=("a.out",))
    assert not stamps.running(stage)
    stamps.start(stage)
    lock = tmp_path / ".state/lock"
    lock.touch()
    os.utime(lock, (2e9, 2e9))  # taken after the stage was begun: by a later run
    assert not stamps.running(stage)
    os.utime(lock, (1e9, 1e9))
    assert stamps.running(stage)
    (tmp_path / "a.out").touch()
    stamps.finish(stage, 1.0)
    assert not stamps.running(stage)
