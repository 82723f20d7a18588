"""A stage's command as a process gets it, and as a shell script shows it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from fairseq_fixed.experiments import resources
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.plan import Plan

__all__ = ["environment", "expand", "fill", "merged", "render_script"]

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# Keep freed memory. By default glibc gives large blocks (a batch's logits) back to the kernel at
# once and gets them again, page by page, a few times an update: about a fifth of a small model's
# training time on a CPU. Other C libraries ignore these.
_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "10000000000",
    "MALLOC_TOP_PAD_": "67108864",
}


def environment(threads: int) -> dict[str, str]:
    """Return what stages' environment has beside the caller's: paths, CPU threads, allocator."""
    paths = [str(resources.import_root()), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(p for p in paths if p)),
        "PYTHONUNBUFFERED": "1",
        **{name: str(threads) for name in _THREAD_VARIABLES},
        **_ALLOCATOR,
    }


def expand(argv: tuple[str, ...]) -> list[str]:
    """Return a stage's argv with its program and folders filled in.

    Raises:
        ExperimentError: the program is not there.
    """
    program, *rest = argv
    if program == "python":
        found: str | None = sys.executable
    else:
        beside = Path(sys.executable).parent / program
        found = str(beside) if beside.is_file() else shutil.which(program)
    if found is None:
        raise ExperimentError(
            f"{program} is not installed for {sys.executable}; fairseq's commands come with "
            "pip install 'fairseq-fixed-attention[fairseq]', or with scripts/bootstrap.sh in a "
            "clone"
        )
    return [found, *(fill(word) for word in rest)]


def fill(word: str) -> str:
    """Return a word of a stage's argv with its folders filled in."""
    if "{plugin}" in word:
        word = word.replace("{plugin}", str(resources.plugin_folder()))
    if "{data}" in word:
        word = word.replace("{data}", str(resources.data_folder()))
    return word


def render_script(
    plan: Plan, *, title: str, threads: int, files: Mapping[str, str] | None = None
) -> str:
    """Return the plan as a bash script that stands in the run's folder and does all of it.

    Args:
        plan: the stages.
        title: a comment at the top.
        threads: CPU threads of each command.
        files: text files that commands read and no command writes, by path.
    """
    env = environment(threads)
    lines = [
        "#!/usr/bin/env bash",
        f"# {title}",
        "# Every command of the run, in an order that works, in the folder that this file lies in.",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        f"PLUGIN={shlex.quote(str(resources.plugin_folder()))}",
        f"DATA={shlex.quote(_data_folder())}",
        *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
        "mkdir -p logs",
    ]
    for path, text in (files or {}).items():
        lines += [
            "",
            f"cat > {shlex.quote(path)} <<'END_OF_FILE'",
            *text.splitlines(),
            "END_OF_FILE",
        ]
    for stage in plan:
        lines += ["", f"# {stage.name}", *_folders(stage.outputs), _command(stage.argv, stage.log)]
    return "\n".join(lines) + "\n"


def _data_folder() -> str:
    try:
        return str(resources.data_folder())
    except FileNotFoundError:
        return "data-folder-not-found"


def _folders(outputs: tuple[str, ...]) -> list[str]:
    folders = sorted({o.rstrip("/") if o.endswith("/") else str(Path(o).parent) for o in outputs})
    return [f"mkdir -p {shlex.join(folders)}"] if folders else []


def _command(argv: tuple[str, ...], log: str) -> str:
    words = [_quote(word) for word in argv]
    lines: list[str] = []
    current = ""
    for word in words:
        # An option and its values stay together.
        if current and word.startswith("--") and len(current) + len(word) > 60:
            lines.append(current)
            current = ""
        current = f"{current} {word}" if current else word
    lines.append(current)
    return " \\\n  ".join(lines) + f" \\\n  2>&1 | tee {shlex.quote(log)}"


def _quote(word: str) -> str:
    for mark, variable in (("{plugin}", "$PLUGIN"), ("{data}", "$DATA")):
        if mark in word:
            return '"' + word.replace(mark, variable) + '"'
    return shlex.quote(word)


def merged(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment with `extra` over it."""
    return {**os.environ, **extra}
