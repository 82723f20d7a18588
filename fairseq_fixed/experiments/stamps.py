"""When is a stage done? A stamp holds the hash of its command, inputs and tools.

`.state/stamps/NAME.json` is written when a stage has ended well, `NAME.started.json` when it
starts. Files are hashed by content; the hash is kept by size and modification time, so that a
check of a finished run reads no file twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.lock import lock_file
from fairseq_fixed.experiments.plan import Plan, Stage

__all__ = [
    "FileHashes",
    "StageState",
    "Stamps",
    "read_json",
    "tool_versions",
    "write_json",
    "write_text",
]

_PAUSE_BETWEEN_SAVES = 5.0  # seconds
_SHORT = 600.0  # seconds of an unfinished training that may be thrown away unasked


def write_text(path: Path, text: str) -> None:
    """Write a file so that a kill or a full disk leaves the old one or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write JSON as `write_text` writes."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or None if there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@cache
def _version(distribution: str) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return "none"


def tool_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the installed versions of distributions. `fairseq` is whichever provides it."""
    versions = {}
    for name in names:
        if name == "fairseq":
            found = {d: _version(d) for d in ("fairseq", "fairseq-fixed")}
            versions[name] = next((v for v in found.values() if v != "none"), "none")
        elif name == "fairseq-fixed-attention":
            from fairseq_fixed import __version__

            versions[name] = __version__
        else:
            versions[name] = _version(name)
    return versions


class FileHashes:
    """Content hashes of files and folders, kept by (size, mtime) between runs."""

    def __init__(self, folder: Path, store: Path):
        """`folder` is what relative paths are relative to, `store` the JSON file of the cache."""
        self.folder = folder
        self.store = store
        known = read_json(store)
        self._known: dict[str, list] = known if isinstance(known, dict) else {}
        self._saved = time.monotonic()
        self._changed = False

    def of(self, path: str) -> str | None:
        """Return the hash of a file, or of a folder's files and names; None if it is missing."""
        full = self.folder / path
        if full.is_dir():
            files = sorted(p for p in full.rglob("*") if p.is_file())
            names = [(str(p.relative_to(full)), self._of_file(p)) for p in files]
            return hashlib.sha256(json.dumps(names).encode()).hexdigest()
        return self._of_file(full) if full.is_file() else None

    def _of_file(self, path: Path) -> str:
        stat = path.stat()
        key = str(path.absolute())
        known = self._known.get(key)
        if known and known[:2] == [stat.st_size, stat.st_mtime_ns]:
            return known[2]
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest() if _HAS_DIGEST else _hash(file)
        self._known[key] = [stat.st_size, stat.st_mtime_ns, digest]
        self._changed = True
        if time.monotonic() - self._saved > _PAUSE_BETWEEN_SAVES:
            self.save()
        return digest

    def save(self) -> None:
        """Write the cache, if it has changed."""
        if self._changed:
            write_json(self.store, self._known)
            self._changed = False
        self._saved = time.monotonic()


_HAS_DIGEST = hasattr(hashlib, "file_digest")  # Python 3.11


def _hash(file: Any) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class StageState:
    """Where a stage stands.

    Attributes:
        state: `done`, `todo`, `partial` (it can be resumed), `stale` (settings or inputs have
            changed) or `waiting` (for another stage).
        why: for `stale`, what has changed.
        seconds: for `done`, how long it took, resumed parts together.
        finished: for `done`, when, in seconds since 1970.
    """

    state: str
    why: str = ""
    seconds: float = 0.0
    finished: float = 0.0


class Stamps:
    """The stamps of one run's folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.state_folder = folder / ".state"
        self.hashes = FileHashes(folder, self.state_folder / "hashes.json")

    def _path(self, stage: Stage) -> Path:
        return self.state_folder / "stamps" / f"{stage.name}.json"

    def _started_path(self, stage: Stage) -> Path:
        return self.state_folder / "stamps" / f"{stage.name}.started.json"

    def _complete(self, stage: Stage) -> bool:
        return all(_exists(self.folder, output) for output in stage.outputs)

    def describe(self, stage: Stage) -> dict[str, Any]:
        """Return what decides a stage's result, with one hash over all of it."""
        content: dict[str, Any] = {
            "argv": list(stage.argv),
            "inputs": {path: self.hashes.of(path) for path in stage.inputs},
            "tools": tool_versions(stage.tools),
        }
        text = json.dumps(content, sort_keys=True)
        return {"hash": hashlib.sha256(text.encode()).hexdigest(), **content}

    def state(self, stage: Stage) -> StageState:
        """Return where a stage stands whose inputs are all there."""
        now = self.describe(stage)
        stamp = read_json(self._path(stage))
        started = read_json(self._started_path(stage))
        for earlier in (stamp, started):
            if isinstance(earlier, Mapping) and _has_grown(stage, earlier, now):
                return StageState("partial", _difference(earlier, now), earlier.get("seconds", 0.0))
        if isinstance(stamp, Mapping):
            if stamp.get("hash") == now["hash"]:
                if self._complete(stage):
                    return StageState(
                        "done", "", stamp.get("seconds", 0.0), stamp.get("finished", 0.0)
                    )
                return StageState("stale", "its output is missing")
            return StageState("stale", _difference(stamp, now))
        if isinstance(started, Mapping):
            if started.get("hash") != now["hash"]:
                return StageState("stale", _difference(started, now))
            if stage.resumable:
                return StageState("partial", "", started.get("seconds", 0.0))
        return StageState("todo")

    def survey(self, plan: Plan, *, save: bool = True) -> dict[str, StageState]:
        """Return the state of every stage, without running any; `save` keeps new file hashes."""
        states: dict[str, StageState] = {}
        for stage in plan:
            if any(states[need].state != "done" for need in plan.needs(stage)):
                started = self._started_path(stage).exists() or self._path(stage).exists()
                why = "needs an earlier stage again" if started else ""
                states[stage.name] = StageState("waiting", why)
            else:
                states[stage.name] = self.state(stage)
        if save:
            self.hashes.save()
        return states

    def start(self, stage: Stage, spent: float = 0.0) -> None:
        """Note that a stage starts with its present inputs; it is not done until `finish`."""
        content = {**self.describe(stage), "seconds": spent}
        before = read_json(self._started_path(stage))
        if self._path(stage).exists() or (isinstance(before, dict) and before.get("goes_on")):
            content["goes_on"] = True  # from where it had ended, towards a larger limit
        write_json(self._started_path(stage), content)
        self._path(stage).unlink(missing_ok=True)
        self.hashes.save()

    def spend(self, stage: Stage, seconds: float) -> None:
        """Add to the time that a stage which did not end has used."""
        started = read_json(self._started_path(stage))
        if isinstance(started, dict):
            started["seconds"] = started.get("seconds", 0.0) + seconds
            write_json(self._started_path(stage), started)

    def finish(self, stage: Stage, seconds: float) -> None:
        """Note that a stage has ended well, `seconds` after its (last) start."""
        started = read_json(self._started_path(stage))
        if not isinstance(started, dict):
            raise RuntimeError(f"stage {stage.name!r} ends but has not been started")
        started["seconds"] = started.get("seconds", 0.0) + seconds
        started["finished"] = time.time()
        started.pop("goes_on", None)
        write_json(self._path(stage), started)
        self._started_path(stage).unlink(missing_ok=True)

    def running(self, stage: Stage) -> bool:
        """Return whether the run that holds the folder now has started a stage and not ended it."""
        started = self._started_path(stage)
        taken = _written(lock_file(self.folder))  # it is written when the folder is taken
        return started.exists() and _written(started) >= taken

    def invested(self, stage: Stage) -> float | None:
        """Return the seconds, with whatever settings, that are too many to begin anew unasked.

        None for a stage that never ended well and had gone on for less than ten minutes, and where
        its outputs are no longer there.
        """
        if not self._complete(stage):
            return None
        if isinstance(stamp := read_json(self._path(stage)), Mapping):
            return float(stamp.get("seconds", 0.0))
        if not isinstance(started := read_json(self._started_path(stage)), Mapping):
            return None
        # killed, it could not note its time: then up to what it wrote last
        last = max(_last_written(self.folder / output) for output in stage.outputs)
        seconds = started.get("seconds", 0.0) + max(0.0, last - _written(self._started_path(stage)))
        return seconds if started.get("goes_on") or seconds > _SHORT else None

    def outdated(self, stage: Stage) -> bool:
        """Return whether what a stage has left is known to be of other inputs or settings.

        Other versions of its tools do not matter here. Nothing is known where an input has been
        tidied away, and of what was written by hand, after the last stamp.
        """
        written = max((_written(self.folder / output) for output in stage.outputs), default=0.0)
        started = self._started_path(stage)
        if started.exists():  # begun anew: has it not come to its output yet?
            return written <= _written(started)
        stamp = read_json(self._path(stage))
        if not isinstance(stamp, Mapping) or written > _written(self._path(stage)):
            return False
        now = self.describe(stage)
        before = stamp.get("inputs") or {}
        there = {path: digest for path, digest in now["inputs"].items() if digest is not None}
        return stamp.get("argv") != now["argv"] or any(
            before.get(path) != digest for path, digest in there.items()
        )

    def holds(self, stage: Stage, digest: str) -> bool:
        """Return whether a stage was done here with this hash, and its outputs are still there."""
        stamp = read_json(self._path(stage))
        return isinstance(stamp, Mapping) and stamp.get("hash") == digest and self._complete(stage)

    def adopt(self, stage: Stage, source: Stamps) -> None:
        """Take over what an equal stage wrote in another run's folder, its log included.

        Files are linked where that is possible, but not those of a stage that may go on: it would
        write into the other run's.
        """
        for name in (*stage.outputs, *stage.traces, stage.log):
            _copy(source.folder / name, self.folder / name, link=not stage.resumable)
        write_json(self._path(stage), read_json(source._path(stage)))
        self._started_path(stage).unlink(missing_ok=True)

    def forget(self, stage: Stage) -> None:
        """Make a stage run again."""
        self._path(stage).unlink(missing_ok=True)
        self._started_path(stage).unlink(missing_ok=True)


def _copy(source: Path, target: Path, *, link: bool) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for path in source.iterdir():
            _copy(path, target / path.name, link=link)
        return
    if not source.is_file():  # a log that was tidied away
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if link:
        with contextlib.suppress(OSError):  # another file system
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def _written(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _last_written(path: Path) -> float:
    """Return when a file, or one of those in a folder, was last written."""
    return max((_written(p) for p in path.rglob("*")), default=0.0) or _written(path)


def _exists(folder: Path, output: str) -> bool:
    path = folder / output
    return path.is_dir() and any(path.iterdir()) if output.endswith("/") else path.is_file()


def _has_grown(stage: Stage, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether nothing but the number behind `stage.grows` differs, and it is larger now."""
    if stage.grows is None or stage.grows not in stage.argv:
        return False
    place = stage.argv.index(stage.grows) + 1
    before, after = list(old.get("argv") or []), list(new["argv"])
    try:
        larger = int(after.pop(place)) > int(before.pop(place))
    except (IndexError, ValueError):
        return False
    rest = ("inputs", "tools")
    return larger and before == after and all(old.get(key) == new[key] for key in rest)


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Say in one line what has changed since a stamp was written."""
    if old.get("argv") != new["argv"]:
        return _argument_difference(list(old.get("argv") or []), new["argv"])
    before = old.get("inputs") or {}
    changed = [path for path, digest in new["inputs"].items() if before.get(path) != digest]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return f"{changed[0]} has changed{more}"
    before = old.get("tools") or {}
    tools = [f"{n} {before.get(n)} → {v}" for n, v in new["tools"].items() if before.get(n) != v]
    return "; ".join(tools) or "changed"


def _argument_difference(old: list[str], new: list[str]) -> str:
    before, after = _options(old), _options(new)
    parts = []
    for option in dict.fromkeys([*before, *after]):
        was, now = before.get(option), after.get(option)
        if was == now:
            continue
        if now is None:
            parts.append(f"{option} left out")
        elif was is None:
            parts.append(f"{option} {now} added".replace("  ", " "))
        else:
            parts.append(f"{option} {was} → {now}")
    return "; ".join(parts[:3]) + (" …" if len(parts) > 3 else "") or "another command"


def _options(argv: list[str]) -> dict[str, str]:
    options: dict[str, list[str]] = {}
    current = "command"
    for word in argv:
        if word.startswith("--"):
            current = word
            options.setdefault(current, [])
        else:
            options.setdefault(current, []).append(word)
    return {option: " ".join(values) for option, values in options.items()}
