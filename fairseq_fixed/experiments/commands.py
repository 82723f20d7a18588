"""A stage's command as a process gets it, and as bash reads it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_fixed.experiments import resources
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.plan import NOTHING_LEFT, Plan, Stage

__all__ = [
    "ALLOCATOR",
    "THREAD_VARIABLES",
    "batches",
    "environment",
    "expand",
    "fill",
    "launched",
    "merged",
    "render_stages",
]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# Keep freed memory. By default glibc gives large blocks (a batch's logits) back to the kernel at
# once and gets them again, page by page, a few times an update: about a fifth of a small model's
# training time on a CPU. Other C libraries ignore these.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "10000000000",
    "MALLOC_TOP_PAD_": "67108864",
}


_LINE = 60  # characters of a script's line, about
_SHARE = re.compile(r"\{update_freq:(\d+)\}")


def environment(threads: int) -> dict[str, str]:
    """Return what stages' environment has beside the caller's: paths, CPU threads, allocator."""
    paths = [str(resources.import_root()), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(p for p in paths if p)),
        "PYTHONUNBUFFERED": "1",
        **{name: str(threads) for name in THREAD_VARIABLES},
        **ALLOCATOR,
    }


def launched(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command that `launch` starts, or the command itself where nothing launches it."""
    argv = tuple(argv)
    return argv[argv.index("--") + 1 :] if "launch" in argv[:4] else argv


def expand(argv: tuple[str, ...], devices: int = 1) -> list[str]:
    """Return a stage's argv with its program, folders and devices filled in.

    Raises:
        ExperimentError: the program is not there, or the devices cannot share the batches.
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
    return [found, *(fill(word, devices) for word in rest)]


def fill(word: str, devices: int = 1) -> str:
    """Return a word of a stage's argv with its folders and devices filled in.

    Raises:
        ExperimentError: the devices cannot share the batches equally.
    """
    if "{plugin}" in word:
        word = word.replace("{plugin}", str(resources.plugin_folder()))
    if "{data}" in word:
        word = word.replace("{data}", str(resources.data_folder()))
    if share := _SHARE.fullmatch(word):
        count = int(share[1])
        if count % devices:
            fitting = [str(n) for n in range(1, devices) if count % n == 0]
            raise ExperimentError(
                f"train.batch_tokens makes {count} batches an update, which {devices} GPUs cannot "
                f"share equally. Let CUDA_VISIBLE_DEVICES name {' or '.join(fitting)} of them, or "
                "change train.max_tokens or train.batch_tokens"
            )
        return str(count // devices)
    return word.replace("{devices}", str(devices))


def batches(plan: Plan) -> int | None:
    """Return how many batches of an update the plan's trainings share among all GPUs, if any."""
    for stage in plan:
        for word in stage.argv:
            if share := _SHARE.fullmatch(word):
                return int(share[1])
    return None


def render_stages(plan: Plan, files: Mapping[str, str] | None = None) -> list[str]:
    """Return the lines of bash that do a plan, in the run's folder.

    They use `$PLUGIN` and `$DATA`, and `$DEVICES` where :func:`batches` are shared.

    Args:
        plan: the stages.
        files: text files that commands read and no command writes, by path.
    """
    lines = ["mkdir -p logs"]
    for path, text in (files or {}).items():
        lines += [
            "",
            f"cat > {shlex.quote(path)} <<'END_OF_FILE'",
            *text.splitlines(),
            "END_OF_FILE",
        ]
    for stage in plan:
        lines += ["", f"# {stage.name}", *_folders(stage), *_what_is_left(stage)]
    return lines


def _what_is_left(stage: Stage) -> list[str]:
    """Return a stage's command, and around one that may go on what the runner does before it.

    fairseq takes a step before it looks whether a training has had all its updates: one that has
    ended would end with another model each time.
    """
    if not stage.before_resume:
        return [_command(stage)]
    folders = shlex.join(o.rstrip("/") for o in stage.outputs)
    return [
        f"left=0  # {NOTHING_LEFT}: nothing, it has ended",
        f'[ -z "$(ls -A {folders})" ] || \\',
        f"  {_wrapped(stage.before_resume)} || left=$?",
        'if [ "$left" = 0 ]; then',
        _command(stage),
        f'elif [ "$left" != {NOTHING_LEFT} ]; then exit "$left"; fi',
    ]


def _folders(stage: Stage) -> list[str]:
    """Make the folders of what a stage writes; started again, it must not find its own output."""
    own = sorted(o.rstrip("/") for o in stage.outputs if o.endswith("/"))
    others = {str(Path(o).parent) for o in stage.outputs if not o.endswith("/")}
    lines = [f"rm -rf {shlex.join(own)}"] if own and not stage.resumable else []
    folders = sorted({*own, *others} - {"."})
    return lines + ([f"mkdir -p {shlex.join(folders)}"] if folders else [])


def _command(stage: Stage) -> str:
    tee = "tee -a" if stage.resumable else "tee"  # what came before belongs to the curve
    return f"{_wrapped(stage.command)} \\\n  2>&1 | {tee} {shlex.quote(stage.log)}"


def _wrapped(command: Sequence[str]) -> str:
    words = [_quote(word) for word in command]
    lines: list[str] = []
    current = ""
    for word in words:
        # An option and its values stay together, but for long lists.
        long = len(current) + len(word) > _LINE
        if current and long and (word.startswith("--") or len(word) > _LINE):
            lines.append(current)
            current = ""
        current = f"{current} {word}" if current else word
    lines.append(current)
    return " \\\n  ".join(lines)


def _quote(word: str) -> str:
    if share := _SHARE.fullmatch(word):
        return f'"$(({share[1]} / DEVICES))"'
    for mark, variable in (
        ("{plugin}", "$PLUGIN"),
        ("{data}", "$DATA"),
        ("{devices}", "$DEVICES"),
    ):
        if mark in word:
            return '"' + word.replace(mark, variable) + '"'
    return shlex.quote(word)


def merged(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment with `extra` over it."""
    return {**os.environ, **extra}
