"""A stage's process: started in a group of its own, its output in its log, ended with its parent.

The output goes to the file without a pipe in between, so that nothing is lost when we die.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

__all__ = ["dying_with_parent", "start", "terminate_all"]

_PATIENCE = 10.0  # seconds from SIGTERM to SIGKILL
_PR_SET_PDEATHSIG = 1


def dying_with_parent() -> Callable[[], None] | None:
    """Return what a child calls so that Linux kills it when its parent dies, even by SIGKILL."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)

    return prepare


def start(argv: list[str], folder: Path, log: Path, env: Mapping[str, str]) -> subprocess.Popen:
    """Start a command whose standard output and error are appended to `log`.

    Call it from the main thread: the kernel ties the child to the thread that started it.

    Raises:
        OSError: the log cannot be written or the program cannot be run.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dying_with_parent(),
        )


def terminate_all(processes: Iterable[subprocess.Popen]) -> None:
    """End processes and their groups: SIGTERM first, SIGKILL for who does not go.

    A second Ctrl-C while waiting kills at once.
    """
    living = [p for p in processes if p.poll() is None]
    for process in living:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + _PATIENCE
    try:
        while time.monotonic() < deadline and any(p.poll() is None for p in living):
            time.sleep(0.05)
    except KeyboardInterrupt:
        pass
    for process in living:
        _signal(process, signal.SIGKILL)  # what is left of the group, too
        process.wait()


def _signal(process: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
