"""Errors that a user can act on. The command line prints them without a traceback."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ExperimentError", "FolderInUseError", "RecipeError", "StageFailedError"]


class ExperimentError(Exception):
    """What was wrong, where, and what to do."""


class RecipeError(ExperimentError):
    """A recipe that cannot run; all that is wrong with it, one entry an error."""

    def __init__(self, recipe: str, errors: Sequence[str]):
        self.recipe = recipe
        self.errors = list(errors)
        count = len(self.errors)
        lines = "\n".join(f"  - {error}" for error in self.errors)
        super().__init__(f"recipe {recipe!r} has {count} error{'s' if count > 1 else ''}:\n{lines}")


class FolderInUseError(ExperimentError):
    """Another run holds the folder."""


class StageFailedError(ExperimentError):
    """A stage's command ended with an error; the message ends with what to do."""
