"""Where and with what a run was made: for reports and results, without names of hosts or users."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import resources
from fairseq_fixed.experiments.stamps import tool_versions

__all__ = ["describe_machine", "git_commit", "versions"]

_TOOLS = ("fairseq-fixed-attention", "fairseq", "torch", "numpy", "sentencepiece", "sacrebleu")


def versions() -> dict[str, str]:
    """Return the versions of Python and of what decides results."""
    return {"python": platform.python_version(), **tool_versions(_TOOLS)}


def describe_machine() -> dict[str, Any]:
    """Return the processor's model, cores, memory in GiB, system and GPUs."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": available_cores(),
        "memory_gib": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpus": _gpu_names(),
        "threads": int(os.environ.get("OMP_NUM_THREADS", "0") or 0) or None,
    }


def available_cores() -> int:
    """Return the CPU cores that this process may use."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:
        return os.cpu_count() or 1


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs to use, without importing torch: the environment's choice, or the driver's.

    The values fit CUDA_VISIBLE_DEVICES.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(part.strip() for part in chosen.split(",") if part.strip() not in ("", "-1"))
    lines = _output("nvidia-smi", "--query-gpu=index", "--format=csv,noheader").splitlines()
    return tuple(line.strip() for line in lines if line.strip().isdigit())


def git_commit() -> str | None:
    """Return the commit of the clone that the package is run from, `+` behind it if changed."""
    root = resources.import_root()
    if not (root / ".git").exists():
        return None
    commit = _output("git", "-C", str(root), "rev-parse", "--short=12", "HEAD").strip()
    if not commit:
        return None
    changed = _output(
        "git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"
    ).strip()
    return commit + ("+" if changed else "")


def _output(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _gpu_names() -> list[str]:
    return [
        line.strip()
        for line in _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
        if line.strip()
    ]
