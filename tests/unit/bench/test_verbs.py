import json
import subprocess
import sys

import pytest
from bench_common import make_case, make_record
from typer.testing import CliRunner

from fairseq_fixed.bench import attention
from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.record import write_record
from fairseq_fixed.cli import app

SMALL = ["--width", "16", "--layers", "1", "--tokens", "24", "--rounds", "2", "--lengths", "6"]


def run(*words: object, **more):
    return CliRunner().invoke(app, ["bench", *map(str, words)], **more)


def test_attention_writes_all_that_it_was_asked_for(tmp_path):
    target = tmp_path / "x.json"
    done = run("attention", *SMALL, "--mixes", "8f", "--peers", "fairseq,sdpa", "--json", target)
    assert done.exit_code == 0, done.output
    record = json.loads(target.read_text())
    assert record["bench"] == "attention"
    assert len(record["cases"]) == 4
    assert record["settings"]["rounds"] == 2
    assert record["settings"]["lengths"] == [6]
    assert "8f" in done.output
    assert str(target) in done.output


def test_the_report_of_a_record_is_markdown(tmp_path):
    cases = [make_case(n, {"8f": [1.0], "fairseq": [2.0]}, {"8f"}) for n in (64, 128)]
    write_record(make_record("attention", cases), tmp_path / "x.json")
    done = run("report", tmp_path / "x.json", "--fit-from", 64, "--figure", tmp_path / "x.png")
    assert done.exit_code == 0, done.output
    assert "| 8f against fairseq | 2.00 (2.00–2.00) | 2.00 (2.00–2.00) |" in done.stdout
    assert (tmp_path / "x.png").stat().st_size > 1000
    more = ["--fit-from", 64, "--out", tmp_path / "x.md", "--show", "exponents"]
    run("report", tmp_path / "x.json", *more)
    text = (tmp_path / "x.md").read_text()
    assert "cost a sentence" in text
    assert "times as fast" not in text


def test_what_is_done_is_kept_when_interrupted(tmp_path, monkeypatch):
    def interrupted(*_):
        yield make_case(6, {"8f": [1.0], "fairseq": [2.0]}, {"8f"})
        raise KeyboardInterrupt

    monkeypatch.setattr(attention, "run_attention", interrupted)
    target = tmp_path / "x.json"
    done = run("attention", *SMALL, "--json", target, "--figure", tmp_path / "x.png")
    assert done.exit_code == 130
    assert "1 cases were measured" in done.output
    assert len(json.loads(target.read_text())["cases"]) == 1
    assert (tmp_path / "x.png").exists()


def test_files_are_tried_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "run_attention", lambda *_: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    done = run("attention", *SMALL, "--json", tmp_path / "file" / "x.json")
    assert isinstance(done.exception, BenchError)
    done = run("attention", "--lengths", "real", "--figure", tmp_path / "x.png")
    assert "give lengths" in str(done.exception)


def test_names_of_corpora_do_not_reach_the_record(tmp_path, monkeypatch):
    text = tmp_path / "secret.txt"
    text.write_text("x y z\n" * 5)
    target = tmp_path / "out.json"
    words = ["attention", *SMALL[:-1], "real,6", "--mixes", "8f", "--peers", "fairseq"]
    words += [f"--text={text}", "--json", str(target), "--attention-dropout", "0"]
    monkeypatch.setattr(sys, "argv", ["fairseq-fixed", "bench", *words])
    assert run(*words).exit_code == 0
    content = target.read_text()
    assert "secret" not in content
    assert "--text=…" in content
    assert json.loads(content)["settings"]["mix"] == "a text of 5 lines"


def test_help_does_not_wait_for_torch():
    code = (
        "import sys; sys.argv = ['fairseq-fixed', 'bench', 'attention', '--help']\n"
        "from fairseq_fixed.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    assert not {'torch', 'numpy', 'fairseq'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--attention-dropout" in done.stdout
