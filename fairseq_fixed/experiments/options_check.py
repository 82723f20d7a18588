"""Asks fairseq's own parsers whether they know every option, before anything long runs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from typing import Any

from fairseq_fixed.experiments import commands
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.plan import Stage

__all__ = ["parse_options"]

_WIDTH = 200  # characters of a message; argparse lists all architectures of fairseq


def parse_options(stages: Iterable[Stage]) -> dict[str, dict[str, Any]]:
    """Return by stage the options as fairseq understands them, defaults included.

    Args:
        stages: stages of a plan; those that are no `fairseq-train` or `fairseq-generate` are passed
            over.

    Raises:
        ExperimentError: options that fairseq refuses, of all stages at once.
    """
    from fairseq import options

    # fairseq leaves a --user-dir alone that has been imported, as this package has.
    import fairseq_fixed.models  # noqa: F401

    makers = {
        "fairseq-train": options.get_training_parser,
        "fairseq-generate": options.get_generation_parser,
    }
    known: dict[str, dict[str, Any]] = {}
    errors: list[str] = []
    for stage in stages:
        program, *words = commands.launched(stage.command)
        if program not in makers:
            continue
        said = io.StringIO()
        words = [commands.fill(word) for word in words]
        try:
            with contextlib.redirect_stderr(said):
                parsed = options.parse_args_and_arch(makers[program](), input_args=words)
        except SystemExit:
            wrong = [line for line in said.getvalue().splitlines() if "error: " in line]
            message = wrong[-1].partition("error: ")[2] if wrong else said.getvalue()[-300:]
            errors.append(f"{stage.name}: {message[:_WIDTH]}")
            continue
        known[stage.name] = {
            name: value if isinstance(value, str | int | float | bool | None) else str(value)
            for name, value in sorted(vars(parsed).items())
            if not name.startswith("_")
        }
    if errors:
        lines = "\n".join(f"  - {error}" for error in dict.fromkeys(errors))
        raise ExperimentError(f"fairseq refuses options of the recipe or of a system:\n{lines}")
    return known
