"""One run a folder: an flock, which the system frees when its holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from fairseq_fixed.experiments.errors import ExperimentError, FolderInUseError

__all__ = ["folder_lock", "holder", "lock_file"]


def lock_file(folder: Path) -> Path:
    """Return the file whose lock holds a run's folder."""
    return folder / ".state" / "lock"


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a run's folder, creating it where needed.

    Raises:
        FolderInUseError: another run holds it.
        ExperimentError: the folder cannot be written.
    """
    path = lock_file(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise ExperimentError(
            f"cannot write to {folder}: {error.strerror or error}; choose another folder "
            "with out=FOLDER"
        ) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            owner = handle.read().strip()
            raise FolderInUseError(
                f"{folder} is in use by another run{f' (process {owner})' if owner else ''}; "
                "wait for it, stop it, or choose another folder with out=FOLDER. "
                f"To watch it: fairseq-fixed status {folder}"
            ) from None
        try:
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
        except OSError as error:
            raise ExperimentError(f"cannot write to {folder}: {error.strerror or error}") from error
        yield


def holder(folder: Path) -> int | None:
    """Return the process that runs in `folder`, or None if none does."""
    try:
        with lock_file(folder).open("r", encoding="utf-8") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = handle.read().strip()
                return int(text) if text.isdigit() else 0
            return None
    except OSError:
        return None
