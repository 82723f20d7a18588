"""What a benchmark cannot do, and why."""

from __future__ import annotations

from fairseq_fixed.experiments.errors import ExperimentError

__all__ = ["BenchError", "UnavailableError"]


class BenchError(ExperimentError):
    """A benchmark that cannot be run as asked; the message says what was wrong."""


class UnavailableError(Exception):
    """A contender that does not exist for a case; the message, a note in the result, says why."""
