"""Results as JSON: what was asked, where it ran, and every figure."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.length_mix import LengthMix
from fairseq_fixed.bench.memory import describe_method
from fairseq_fixed.experiments.machine import describe_machine, git_commit, versions
from fairseq_fixed.experiments.stamps import tool_versions, write_text

__all__ = [
    "FORMAT",
    "check_writable",
    "describe_settings",
    "new_record",
    "read_record",
    "write_record",
]

FORMAT = 1


def describe_settings(*settings: Any) -> dict[str, Any]:
    """Return dataclasses of settings as one flat dictionary of what JSON knows.

    Names of files and folders are left out: they say nothing elsewhere.
    """
    found: dict[str, Any] = {}
    for one in settings:
        for entry in dataclasses.fields(one):
            value = getattr(one, entry.name)
            if isinstance(value, LengthMix):
                found[entry.name] = value.about
            elif dataclasses.is_dataclass(value):
                found |= describe_settings(value)
            elif entry.init and not _private(value):
                found[entry.name] = _plain(value)
    return found


def _private(value: Any) -> bool:
    return isinstance(value, Path) or (
        isinstance(value, list | tuple) and any(isinstance(item, Path) for item in value)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return getattr(value, "name", value)


def new_record(
    bench: str, settings: Mapping[str, Any], *, command: str, device: str
) -> dict[str, Any]:
    """Return a record without cases.

    Args:
        bench: which benchmark.
        settings: what it was asked to do.
        command: that repeats it.
        device: where it runs.
    """
    gpu = None
    if torch.device(device).type == "cuda":
        gpu = torch.cuda.get_device_name(torch.device(device))
    return {
        "format": FORMAT,
        "bench": bench,
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "settings": dict(settings),
        "machine": {**describe_machine(), "threads": torch.get_num_threads(), "gpu": gpu},
        "versions": {**versions(), **tool_versions(("local-attention",))},
        "commit": git_commit(),
        "memory_measured_by": describe_method(device),
        "cases": [],
    }


def check_writable(path: Path) -> None:
    """Find out before hours of measuring whether a file can be written.

    Raises:
        BenchError: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"{path}: its folder cannot be made ({error.strerror})") from error
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        what = "it is a folder" if path.is_dir() else f"no right to write to {path.parent}"
        raise BenchError(f"{path} cannot be written: {what}")


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """Write a record, a list of numbers a line, so that it can be read and compared."""
    write_text(path, "".join(_pretty(record, 0)) + "\n")


def _pretty(value: Any, depth: int) -> Iterator[str]:
    plain = not isinstance(value, Mapping | list | tuple) or not value
    if plain or (
        not isinstance(value, Mapping)
        and not any(isinstance(item, Mapping | list | tuple) for item in value)
    ):
        yield json.dumps(value, ensure_ascii=False)
        return
    pad = "  " * (depth + 1)
    mapping = isinstance(value, Mapping)
    if mapping and depth > 2 and not any(isinstance(v, Mapping | list) for v in value.values()):
        yield json.dumps(value, ensure_ascii=False)
        return
    yield "{\n" if mapping else "[\n"
    entries = value.items() if mapping else ((None, item) for item in value)
    for number, (key, item) in enumerate(entries):
        yield (",\n" if number else "") + pad
        if mapping:
            yield json.dumps(key, ensure_ascii=False) + ": "
        yield from _pretty(item, depth + 1)
    yield "\n" + "  " * depth + ("}" if mapping else "]")


def read_record(path: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        BenchError: no such file, or not a record.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise BenchError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict) or "bench" not in content or "cases" not in content:
        raise BenchError(f"{path}: not a result of `fairseq-fixed bench`")
    if content.get("format") != FORMAT:
        raise BenchError(
            f"{path}: format {content.get('format')}; this version reads {FORMAT}: measure again"
        )
    return content
