import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench_common import make_case, make_record

from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.length_mix import LengthMix
from fairseq_fixed.bench.models import ModelSettings, parse_systems
from fairseq_fixed.bench.record import (
    check_writable,
    describe_settings,
    new_record,
    read_record,
    write_record,
)

CASE = make_case(8, {"mine": [1.0, 2.0, 3.0], "fairseq": [2.0, 4.0, 6.0]}, {"mine"})


def test_a_record_survives_being_written_and_read(tmp_path):
    record = new_record("attention", {"rounds": 3, "x": []}, command="a b", device="cpu")
    record["cases"] += [CASE, CASE]
    write_record(record, tmp_path / "deep" / "x.json")
    assert read_record(tmp_path / "deep" / "x.json") == json.loads(json.dumps(record))


def test_a_list_of_numbers_is_one_line(tmp_path):
    write_record(make_record("attention", [CASE]), tmp_path / "x.json")
    lines = (tmp_path / "x.json").read_text().splitlines()
    assert '          "samples_ms": [1.0, 2.0, 3.0],' in lines


def test_a_record_says_where_it_was_made():
    record = new_record("attention", {}, command="a b", device="cpu")
    assert record["machine"]["threads"] >= 1
    assert record["versions"]["torch"].startswith("2")
    assert "local-attention" in record["versions"]
    assert "allocator" in record["memory_measured_by"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a result of `fairseq-fixed bench`"),
        ('{"a": 1}', "not a result of `fairseq-fixed bench`"),
        ('{"bench": "x", "cases": [], "format": 99}', "format 99"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path, content, message):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(BenchError, match=message):
        read_record(tmp_path / "x.json")


def test_a_missing_record_is_named(tmp_path):
    with pytest.raises(BenchError, match=r"x\.json"):
        read_record(tmp_path / "x.json")


def test_a_place_that_cannot_be_written_is_known_before_measuring(tmp_path):
    check_writable(tmp_path / "new" / "x.json")
    with pytest.raises(BenchError, match="it is a folder"):
        check_writable(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BenchError, match="cannot be made"):
        check_writable(tmp_path / "file" / "x.json")


@dataclass
class Settings:
    mix: LengthMix
    models: ModelSettings
    folder: Path
    files: tuple[Path, ...]
    numbers: tuple[int, ...] = (1, 2)
    nothing: None = None


def test_settings_are_flat_and_name_no_files():
    settings = Settings(
        LengthMix.count([(1, 1)], "a test"),
        ModelSettings(parse_systems("7f+1l,8f")),
        Path("/secret"),
        (Path("/secret"),),
    )
    found = describe_settings(settings)
    assert found["mix"] == "a test"
    assert found["systems"] == ["7f+1l", "8f"]
    assert found["numbers"] == [1, 2]
    assert found["nothing"] is None
    assert "secret" not in json.dumps(found)
