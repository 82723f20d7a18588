import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from fairseq_fixed.experiments import runner
from fairseq_fixed.experiments.errors import ExperimentError, FolderInUseError, StageFailedError
from fairseq_fixed.experiments.lock import folder_lock, holder
from fairseq_fixed.experiments.plan import NOTHING_LEFT, Plan, Stage
from fairseq_fixed.experiments.runner import Resources, Task, run_plan, run_plans

ROOT = Path(__file__).resolve().parents[3]


class Recorder:
    """A view that keeps what it is told."""

    def __init__(self):
        self.events: list[tuple] = []
        self.most = 0

    def open(self, states):
        self.events.append(("open", sum(s.state == "done" for s in states.values())))

    def say(self, text):
        self.events.append(("say", text))

    def started(self, stage, how):
        self.events.append(("started", stage.name, how))

    def ended(self, stage, seconds):
        self.events.append(("ended", stage.name))

    def update(self, running, done, total):
        self.most = max(self.most, len(running))

    def close(self):
        self.events.append(("close",))

    def names(self, kind):
        return [event[1] for event in self.events if event[0] == kind]


def python(code, **options):
    """A stage that runs Python code."""
    return Stage(argv=("python", "-c", textwrap.dedent(code)), **options)


def write(name, inputs=(), text="x", **options):
    return python(
        f"open({name + '.out'!r}, 'w').write({text!r})",
        name=name,
        inputs=inputs,
        outputs=(f"{name}.out",),
        **options,
    )


def run(folder, stages, jobs=2, redo=(), gpus=()):
    view = Recorder()
    count = run_plan(Plan(stages), folder, view, Resources(jobs, 1, gpus), redo)
    return count, view


def test_runs_what_is_not_done_in_an_order_that_works(tmp_path):
    stages = [write("a"), write("b", ("a.out",)), write("c", ("a.out",)), write("d", ("c.out",))]
    count, view = run(tmp_path, stages)
    assert count == 4
    order = view.names("ended")
    assert order.index("a") < order.index("c") < order.index("d")
    assert view.events[-1] == ("close",)
    count, view = run(tmp_path, stages)
    assert count == 0 and view.events[0] == ("open", 4)
    assert (tmp_path / "logs/a.log").exists()


def test_independent_stages_run_at_once_and_no_more_than_allowed(tmp_path):
    def stages(prefix):
        return [
            python("import time; time.sleep(0.6)", name=f"{prefix}{i}", outputs=())
            for i in range(4)
        ]

    _, view = run(tmp_path, stages("a"), jobs=3)
    assert view.most == 3
    _, view = run(tmp_path, stages("b"), jobs=1)
    assert view.most == 1


def test_a_change_redoes_only_what_depends_on_it(tmp_path):
    run(tmp_path, [write("a"), write("b", ("a.out",)), write("c")])
    _, view = run(tmp_path, [write("a", text="y"), write("b", ("a.out",)), write("c")])
    assert view.names("started") == ["a", "b"]
    # b reads the same as before although a ran again: nothing to do
    _, view = run(tmp_path, [write("a", text="y"), write("b", ("a.out",)), write("c")], redo=["a"])
    assert view.names("started") == ["a"]


def training(text):
    code = f"import os; open('d/%d' % len(os.listdir('d')), 'w').write({text!r})"
    return python(code, name="train.a.seed1", inputs=("a.out",), outputs=("d/",), resumable=True)


def test_a_finished_training_is_not_replaced_unasked(tmp_path):
    run(tmp_path, [write("a"), training("x")])
    changes = ([write("a", text="y"), training("x")], [write("a"), training("y")])
    for stages, why in zip(changes, ("a.out has changed", "→"), strict=True):
        with pytest.raises(StageFailedError, match="trained already") as caught:
            run(tmp_path, stages)
        assert why in str(caught.value) and "out=FOLDER" in str(caught.value)
        assert "--redo train.a.seed1" in str(caught.value)
        assert (tmp_path / "d/0").read_text() == "x"
    # the old settings again: nothing was lost
    _, view = run(tmp_path, [write("a"), training("x")])
    assert "train.a.seed1" not in view.names("started")
    # in its place, when told so; and where its output is gone anyway
    run(tmp_path, [write("a"), training("y")], redo=["train.a.seed1"])
    assert [(p.name, p.read_text()) for p in (tmp_path / "d").iterdir()] == [("0", "y")]
    (tmp_path / "d/0").unlink()
    run(tmp_path, [write("a"), training("z")])
    assert (tmp_path / "d/0").read_text() == "z"


def counting(limit, *more):
    """Trains up to a limit, a file an update; breaks off behind the update that `until` names."""
    code = """
        import os, sys
        for update in range(len(os.listdir('d')), int(sys.argv[2])):
            open('d/%d' % update, 'w')
            if os.path.exists('until') and update == int(open('until').read()):
                sys.exit(1)
    """
    stage = python(code, name="train.a.seed1", outputs=("d/",), resumable=True, grows="--limit")
    return dataclasses.replace(stage, argv=(*stage.argv, "--limit", str(limit), *more))


def test_a_finished_training_outlives_a_broken_off_continuation(tmp_path):
    run(tmp_path, [counting(3)])
    (tmp_path / "until").write_text("4")
    with pytest.raises(StageFailedError, match="failed"):
        run(tmp_path, [counting(6)])
    with pytest.raises(StageFailedError, match=r"trained already .*--limit 6 → 3"):
        run(tmp_path, [counting(3)])
    assert (tmp_path / "d/0").is_file()
    run(tmp_path, [counting(6)])
    assert len(list((tmp_path / "d").iterdir())) == 6
    run(tmp_path, [counting(3)], redo=["train.a.seed1"])
    assert len(list((tmp_path / "d").iterdir())) == 3


@pytest.mark.parametrize("noted", [True, False])
def test_a_training_long_under_way_is_not_replaced_unasked(tmp_path, noted):
    (tmp_path / "until").write_text("1")
    with pytest.raises(StageFailedError, match="failed"):
        run(tmp_path, [counting(3)])
    changed = counting(3, "--lr", "2")
    with pytest.raises(StageFailedError, match="failed"):  # of a moment: made anew
        run(tmp_path, [changed])
    started = tmp_path / ".state/stamps/train.a.seed1.started.json"
    if noted:
        content = json.loads(started.read_text())
        started.write_text(json.dumps({**content, "seconds": 601}))
    else:  # killed before it could note its time: its last checkpoint tells
        later = started.stat().st_mtime + 601
        os.utime(tmp_path / "d/1", (later, later))
    with pytest.raises(StageFailedError, match=r"trained already \(10 min 01 s\).*--lr left out"):
        run(tmp_path, [counting(3)])
    assert (tmp_path / "d/1").is_file()


def test_an_equal_training_elsewhere_does_not_replace_another_one(tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, text in ((one, "x"), (two, "y")):
        folder.mkdir()
        run(folder, [write("a"), training(text)])
    tasks = [Task(Plan([write("a"), training("y")]), folder) for folder in (one, two)]
    _, failed = run_plans(tasks, Recorder(), Resources(1, 1))
    assert list(failed) == [one] and "trained already" in str(failed[one])
    assert (one / "d/0").read_text() == "x"


def test_outputs_are_wiped_before_a_fresh_start(tmp_path):
    code = "import os; open('d/%d' % len(os.listdir('d')), 'w')"
    stage = python(code, name="a", outputs=("d/",))
    run(tmp_path, [stage])
    run(tmp_path, [stage], redo=["a"])
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["0"]


def test_options_that_decide_nothing_are_given_but_not_stamped(tmp_path):
    code = "import sys; open('a.out', 'w').write(' '.join(sys.argv[1:]))"
    plain = python(code, name="a", outputs=("a.out",))
    spoken = dataclasses.replace(plain, logging=("--spoken",), traces=("d/",))
    (tmp_path / "d").mkdir()
    run(tmp_path, [spoken])
    assert (tmp_path / "a.out").read_text() == "--spoken"
    assert not (tmp_path / "d").exists()  # of an earlier start
    _, view = run(tmp_path, [plain])
    assert view.names("started") == []
    _, view = run(tmp_path, [spoken])  # nor do its traces have to be there
    assert view.names("started") == []


def test_a_resumable_stage_keeps_its_outputs_and_mends_first(tmp_path):
    code = """
        import os, sys
        os.makedirs('d', exist_ok=True)
        found = os.listdir('d')
        open('d/%d' % len(found), 'w')
        sys.exit(0 if found else 1)
    """
    stage = python(
        code,
        name="a",
        outputs=("d/",),
        resumable=True,
        before_resume=("python", "-c", "open('mended', 'w')"),
    )
    with pytest.raises(StageFailedError):
        run(tmp_path, [stage])
    assert not (tmp_path / "mended").exists()
    _, view = run(tmp_path, [stage])
    assert (tmp_path / "mended").exists()
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["0", "1"]
    assert view.events[1] == ("started", "a", "goes on from its last checkpoint")


def test_nothing_left_to_resume_is_the_end(tmp_path):
    stage = python(
        "import sys; open('out', 'a').write('x'); sys.exit(1)",
        name="a",
        outputs=("out",),
        resumable=True,
        before_resume=("python", "-c", f"raise SystemExit({NOTHING_LEFT})"),
    )
    with pytest.raises(StageFailedError):
        run(tmp_path, [stage])
    assert run(tmp_path, [stage])[0] == 1
    assert (tmp_path / "out").read_text() == "x"
    assert run(tmp_path, [stage])[0] == 0


def test_a_failure_is_told_and_stops_the_others(tmp_path):
    code = """
        print('some progress')
        def inner():
            raise OSError(28, 'No space left on device')
        inner()
    """
    slow = python("import time; time.sleep(60)", name="slow")
    never = write("never", ("bad.out",))
    bad = python(code, name="bad", outputs=("bad.out",))
    start = time.monotonic()
    with pytest.raises(StageFailedError) as caught:
        run(tmp_path, [slow, bad, never])
    assert time.monotonic() - start < 15
    message = str(caught.value)
    assert "stage bad failed (exit status 1)" in message
    assert "No space left on device" in message
    assert "the disk is full" in message
    assert str(tmp_path / "logs/bad.log") in message
    assert not (tmp_path / "never.out").exists()


def test_a_stage_killed_from_outside_names_the_signal(tmp_path):
    stage = python("import os; os.kill(os.getpid(), 9)", name="a")
    with pytest.raises(StageFailedError, match="killed by SIGKILL") as caught:
        run(tmp_path, [stage])
    assert "perhaps the system ran out of memory" in str(caught.value)
    stage = python("raise SystemExit(137)", name="b")  # the same, behind another process
    with pytest.raises(StageFailedError, match="perhaps the system ran out of memory"):
        run(tmp_path, [stage])


def test_another_number_of_gpus_inside_an_epoch(tmp_path):
    text = "Cannot resume training due to dataloader mismatch, please report this"
    with pytest.raises(StageFailedError, match="with another number of GPUs: name as many"):
        run(tmp_path, [python(f"raise RuntimeError({text!r})", name="a")])


def test_a_command_that_does_not_write_its_output(tmp_path):
    with pytest.raises(StageFailedError, match="did not write nothing"):
        run(tmp_path, [python("pass", name="a", outputs=("nothing",))])


def test_gpus_are_shared_out(tmp_path):
    code = "import os; open({!r}, 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"
    stages = [
        python(code.format(n) + "; import time; time.sleep(0.5)", name=n, outputs=(n,), device=True)
        for n in ("a", "b")
    ]
    stages.append(python(code.format("c"), name="c", outputs=("c",)))
    run(tmp_path, stages, jobs=3, gpus=("4", "7"))
    assert {(tmp_path / n).read_text() for n in ("a", "b")} == {"4", "7"}
    assert (tmp_path / "c").read_text() == ""


def test_a_training_gets_as_many_gpus_as_it_has_processes(tmp_path):
    code = "import os, sys; open({!r}, 'w').write(os.environ['CUDA_VISIBLE_DEVICES'] + sys.argv[1])"
    stages = []
    for name, processes in (("a", 2), ("b", 2), ("c", "all"), ("d", 1)):
        argv = ("python", "-c", code.format(name), "|{devices}")
        stages.append(
            Stage(name=name, argv=argv, outputs=(name,), device=True, processes=processes)
        )
    run(tmp_path, stages, jobs=4, gpus=("4", "5", "7"))
    written = {n: (tmp_path / n).read_text() for n in "abcd"}
    for name in "ab":
        gpus, devices = written[name].split("|")
        assert len(set(gpus.split(","))) == 2 and devices == "2"
    assert set(written["c"].split("|")[0].split(",")) == {"4", "5", "7"}
    assert written["c"].endswith("|3")
    assert written["d"].split("|")[0] in ("4", "5", "7")


def append(name, inputs=(), text="x", **options):
    """A stage that notes every time it runs in a file outside the runs' folders."""
    code = f"""
        import os
        open(os.environ['NOTES'], 'a').write({name + " "!r})
        os.makedirs({name!r}, exist_ok=True)
        open({name + "/out"!r}, 'a').write({text!r})
    """
    return python(code, name=name, inputs=inputs, outputs=(f"{name}/",), **options)


def run_many(folder, *plans, jobs=2, sources=()):
    view = Recorder()
    tasks = []
    for i, stages in enumerate(plans):
        place = folder / f"run{i}"
        place.mkdir(exist_ok=True)
        tasks.append(Task(Plan(stages), place, f"{i}: "))
    ran, failures = run_plans(tasks, view, Resources(jobs), sources)
    return ran, failures, view


def test_an_equal_stage_of_two_plans_runs_once(tmp_path, monkeypatch):
    notes = tmp_path / "notes"
    monkeypatch.setenv("NOTES", str(notes))
    plans = [
        [append("a"), append("b", ("a/out",)), append("c", ("b/out",), text=text)]
        for text in ("one", "two", "one")
    ]
    ran, failures, view = run_many(tmp_path, *plans, jobs=3)
    assert ran == 4 and not failures
    assert sorted(notes.read_text().split()) == ["a", "b", "c", "c"]
    texts = [(tmp_path / f"run{i}/c/out").read_text() for i in range(3)]
    assert texts == ["one", "two", "one"]
    assert (tmp_path / "run1/logs/a.log").exists()
    assert sum("the same as in" in text for text in view.names("say")) == 5
    assert {name.partition(": ")[0] for name in view.names("ended")} <= {"0", "1", "2"}
    # all is done, and nothing is copied again
    ran, _, view = run_many(tmp_path, *plans)
    assert ran == 0 and not view.names("say")
    # another run takes what it can from these
    other = tmp_path / "other"
    other.mkdir()
    task = Task(Plan(plans[1]), other)
    assert run_plans([task], Recorder(), Resources(), [tmp_path / "run1"]) == (0, {})
    assert (other / "c/out").read_text() == "two"


def test_what_a_stage_may_go_on_with_is_copied_not_linked(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    plan = [append("a"), append("b", resumable=True)]
    run_many(tmp_path, plan, plan)
    for name, linked in (("a", True), ("b", False)):
        one, other = (tmp_path / f"run{i}/{name}/out" for i in range(2))
        assert one.read_text() == other.read_text()
        assert one.samefile(other) == linked


@pytest.mark.parametrize("where", ["wipe", "copy"])
def test_what_is_half_replaced_is_not_taken_for_done(tmp_path, monkeypatch, where):
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    ours, theirs = [append("a", text="one")], [append("a", text="two")]
    run_many(tmp_path, ours, theirs)

    def full(*args, **kwargs):
        (tmp_path / "run0/a").mkdir(exist_ok=True)
        (tmp_path / "run0/a/out").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    task = Task(Plan(theirs), tmp_path / "run0")  # another setting, which run1 has done
    with monkeypatch.context() as patch:
        if where == "copy":
            patch.setattr("fairseq_fixed.experiments.stamps._copy", full)
        else:
            patch.setattr(runner._Runner, "_wipe", full)
        with pytest.raises(OSError, match="No space"):
            run_plans([task], Recorder(), Resources(), [tmp_path / "run1"])
    # and the first setting again: its stamp must not vouch for the other's file
    assert run_plans([Task(Plan(ours), tmp_path / "run0")], Recorder(), Resources())[0] == 1
    assert (tmp_path / "run0/a/out").read_text() == "one"


def test_the_first_plan_goes_before_the_others(tmp_path):
    """Where one job at a time has room, plans end one after the other: results come as they go."""
    stages = [write("a"), write("b", ("a.out",)), write("c", ("b.out",))]
    folders = [tmp_path / name for name in "xyz"]
    tasks = []
    for folder in folders:
        folder.mkdir()
        mine = [
            dataclasses.replace(s, argv=(*s.argv, folder.name)) for s in stages
        ]  # equal ones are copied
        tasks.append(Task(Plan(mine), folder, label=f"{folder.name}."))
    view = Recorder()
    run_plans(tasks, view, Resources(1, 1))
    assert view.names("ended") == [f"{plan}.{stage}" for plan in "xyz" for stage in "abc"]


def test_a_failure_stops_its_own_plan_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    bad = python("raise ValueError('no')", name="bad", outputs=("bad.out",))
    ran, failures, view = run_many(
        tmp_path, [bad, write("after", ("bad.out",))], [append("a"), write("b", ("a/out",))]
    )
    assert list(failures) == [tmp_path / "run0"] and "ValueError: no" in str(
        failures[tmp_path / "run0"]
    )
    assert ran == 3 and (tmp_path / "run1/b.out").exists()
    assert not (tmp_path / "run0/after.out").exists()
    assert any(text.startswith("0: stopped: ") for text in view.names("say"))


def test_processors_and_gpus_are_shared_by_all_plans(tmp_path):
    def plan(prefix):
        code = "import time; time.sleep(0.5)"
        return [python(code, name=f"{prefix}{i}", device=i == 0) for i in range(3)]

    view = Recorder()
    tasks = [Task(Plan(plan(name)), tmp_path / name) for name in "ab"]
    for task in tasks:
        task.folder.mkdir()
    run_plans(tasks, view, Resources(3, 1, ("0",)))
    assert view.most == 3


RUNNER = """
import sys
from pathlib import Path
from fairseq_fixed.experiments.lock import folder_lock
from fairseq_fixed.experiments.plan import Plan, Stage
from fairseq_fixed.experiments.progress import PlainView
from fairseq_fixed.experiments.runner import Resources, run_plan

code = '''
import os, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open("pids", "w").write(f"{os.getpid()} {grandchild.pid}")
time.sleep(60)
'''
folder = Path(sys.argv[1])
with folder_lock(folder):
    stage = Stage("a", ("python", "-c", code), outputs=("o",))
    run_plan(Plan([stage]), folder, PlainView(lambda line: None), Resources())
"""


def start_runner(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (folder / "pids").exists() or not (folder / "pids").read_text():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    return process, [int(p) for p in (folder / "pids").read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids):
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_stages_and_their_children(tmp_path, number):
    process, pids = start_runner(tmp_path)
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert "Terminated" in error
    assert wait_for_end(pids)
    assert holder(tmp_path) is None


def test_a_killed_run_leaves_neither_stage_nor_lock(tmp_path):
    process, pids = start_runner(tmp_path)
    assert holder(tmp_path) == process.pid
    message = rf"in use by another run \(process {process.pid}\)"
    with pytest.raises(FolderInUseError, match=message), folder_lock(tmp_path):
        pass
    process.kill()
    process.communicate(timeout=30)
    assert wait_for_end(pids[:1])
    os.kill(pids[1], signal.SIGKILL)  # a grandchild has no such tie; fairseq starts none here
    with folder_lock(tmp_path):
        assert holder(tmp_path) == os.getpid()
    assert holder(tmp_path) is None


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    message = r"cannot write to .*file.*choose another folder"
    with pytest.raises(ExperimentError, match=message), folder_lock(tmp_path / "file"):
        pass


def test_signals_that_are_ignored_stay_so():
    # as nohup leaves SIGHUP, and a shell's `&` SIGINT, to who is to outlive the terminal
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with runner._StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            signals.check()
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_second_signal_does_not_wait():
    with runner._StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(runner.Terminated) as caught:
            signals.check()
        assert caught.value.number == signal.SIGTERM
        with pytest.raises(runner.Terminated):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
