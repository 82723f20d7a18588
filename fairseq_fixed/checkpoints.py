"""Checkpoints: safe loading and averaging."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_fixed import safe_globals  # noqa: F401

__all__ = [
    "CheckpointError",
    "average_checkpoints",
    "load_checkpoint",
    "save_checkpoint",
]


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used; the message says which, why and what to do."""


_REFUSED = re.compile(r"(?:GLOBAL|global:?|Unsupported class|class) ([\w.]+(?:\.[\w]+)+)")


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Load a fairseq checkpoint to the CPU without running anything that it holds.

    Beyond tensors and plain containers what `fairseq-train` saves is allowed: `argparse.Namespace`
    for its options, numpy's arrays for counts.

    Raises:
        CheckpointError: no such file, a truncated or foreign file, or one that holds another
            class, which is named.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint")
    try:
        # safe_globals.py has allowed what may be in it
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        refused = _REFUSED.search(str(error))
        if refused:
            raise CheckpointError(
                f"{path}: refused, because it holds an object of class {refused[1]}; loading it "
                "could run code. Only tensors, arrays, plain containers and argparse.Namespace are "
                "loaded"
            ) from error
        # torch's own message advises to load without a check, which could run code
        raise CheckpointError(
            f"{path}: not a readable checkpoint ({type(error).__name__}); is it one, or was its "
            "writing interrupted?"
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CheckpointError(f"{path}: not a fairseq checkpoint (it has no 'model')")
    return state


def save_checkpoint(state: dict[str, Any], path: Path | str) -> None:
    """Write a checkpoint so that a killed process leaves either the old file or the new one.

    Raises:
        CheckpointError: it cannot be written.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, temporary)
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch wraps what the file system says
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def average_checkpoints(inputs: Sequence[Path | str], output: Path | str) -> None:
    """Average the parameters of checkpoints of one model and write the result.

    Sums are kept in float64 and cast back; buffers that are not floating point are the last
    checkpoint's. The optimizer's state is left out: the result is for translating, not for
    training on.

    Args:
        inputs: checkpoints, oldest first; the last one's options and history are kept.
        output: file to write.

    Raises:
        CheckpointError: no inputs, an unreadable one, or inputs of different models (the first
            parameter that differs is named).
    """
    if not inputs:
        raise CheckpointError("no checkpoints to average")
    sums: dict[str, torch.Tensor] = {}
    state: dict[str, Any] = {}
    for path in inputs:
        state = load_checkpoint(path)
        model = state["model"]
        if sums:
            _same_parameters(sums, model, inputs[0], path)
        for name, tensor in model.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
            else:
                sums[name] = tensor
    last = state["model"]
    state["model"] = {
        name: (total / len(inputs)).to(last[name].dtype) if total.is_floating_point() else total
        for name, total in sums.items()
    }
    state["last_optimizer_state"] = None
    save_checkpoint(state, output)


def _same_parameters(
    expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], first: object, path: object
) -> None:
    for name in [*expected, *(n for n in found if n not in expected)]:
        if name not in found or name not in expected:
            lacking = path if name not in found else first
            raise CheckpointError(f"{first} and {path} differ: {lacking} has no {name}")
        if expected[name].shape != found[name].shape:
            raise CheckpointError(
                f"{first} and {path} differ: {name} is {tuple(expected[name].shape)} in one and "
                f"{tuple(found[name].shape)} in the other"
            )
