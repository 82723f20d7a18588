"""What to tell of a failed stage: the log's last relevant lines, where it is, what to do."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from fairseq_fixed.experiments.plan import Stage

__all__ = ["describe", "in_a_line"]

_SHOWN = 12  # lines
_WIDTH = 200  # characters a line

# What is in the log, and what helps.
_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"No space left on device|Errno 28|ENOSPC|Disk quota exceeded|file write failed",
        "the disk is full: free some space, or choose another folder with out=FOLDER",
    ),
    (
        r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError",
        "the GPU's memory is full: lower train.max_tokens and raise train.update_freq",
    ),
    (
        r"Cannot allocate memory|MemoryError|can't allocate memory",
        "memory is full: lower jobs, or train.max_tokens",
    ),
    (
        r"Cannot resume training due to dataloader mismatch",
        "the training was begun with another number of GPUs: name as many in "
        "CUDA_VISIBLE_DEVICES, or begin it anew with --redo train",
    ),
    (
        r"unrecognized arguments|invalid choice|the following arguments are required",
        "fairseq does not know an option: look at the flags of the recipe and of the system",
    ),
    (
        r"Permission denied|Read-only file system",
        "a file cannot be written: choose another folder with out=FOLDER",
    ),
    (
        r"Minimum loss scale reached|gradients are NaN|NaN/Inf|loss is nan",
        "the training diverged: lower train.lr, or raise train.warmup_updates",
    ),
)


def describe(stage: Stage, folder: Path, status: int) -> str:
    """Return the message for a stage whose command ended with `status` (negative: a signal)."""
    log = folder / stage.log
    lines = _tail(log)
    how = f"exit status {status}"
    advice = None
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = str(-status)
        how = f"killed by {name}"
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL):  # 137: of the verb `launch`
        advice = "perhaps the system ran out of memory: lower jobs, or train.max_tokens"
    text = "\n".join(lines)
    for pattern, help_text in _ADVICE:
        if re.search(pattern, text, re.IGNORECASE):
            advice = help_text
            break
    shown = _relevant(lines)
    message = [f"stage {stage.name} failed ({how}). Its log ends with:"]
    message += [f"    {line[:_WIDTH]}" for line in shown] or ["    (nothing)"]
    message.append(f"The whole log: {log}")
    if advice:
        message.append(f"What to do: {advice}.")
    message.append(
        "The same command, without --redo, goes on from here; finished stages are not repeated."
    )
    return "\n".join(message)


def in_a_line(error: Exception) -> str:
    """Return an error in one line: of a failed stage, which, how, and its log's last words."""
    first, *more = str(error).split("\n")
    last = [line.strip() for line in more if line.startswith("    ")][-1:]
    return " ".join([first.removesuffix(" Its log ends with:"), *last])


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 50_000))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _relevant(lines: list[str]) -> list[str]:
    """Drop from a Python traceback all but its last call and its message."""
    usage = [i for i, line in enumerate(lines) if line.startswith("usage: ")]
    if usage:  # argparse: pages of options before what is wrong
        wrong = [line for line in lines[usage[-1] :] if ": error: " in line]
        if wrong:
            return wrong[-_SHOWN:]
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    if not starts:
        return lines[-_SHOWN:]
    trace = lines[starts[-1] + 1 :]
    message = next((i for i, line in enumerate(trace) if not line.startswith(" ")), len(trace))
    kept = [*trace[max(0, message - 2) : message], *trace[message:]]
    return kept[:_SHOWN]
