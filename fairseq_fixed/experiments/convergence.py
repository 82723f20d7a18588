"""How a training ended, and whether more of it would have helped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["STILL_FALLING", "converged", "describe_ending", "ending", "since_best"]

# A training whose lowest validation loss is at most so many validations ago has not converged.
STILL_FALLING = 5


def since_best(losses: Sequence[float]) -> int:
    """Return how many validations came after the first one with the lowest loss."""
    return len(losses) - 1 - losses.index(min(losses))


def _since_best(result: Mapping[str, Any]) -> int:
    """Return how many validations came after the one with the lowest loss.

    The loss is the one that was trained, label smoothing included, which fairseq's `--patience`
    watches, too. Without a curve it is what was counted when the result was written, of the loss
    without label smoothing.
    """
    losses = [point["loss"] for point in result.get("curve", ()) if "loss" in point]
    if not losses:
        return int(result["training"]["validations_since_best"])
    return since_best(losses)


def converged(result: Mapping[str, Any]) -> bool:
    """Return whether the validation loss of a result has not improved for five validations."""
    return _since_best(result) >= STILL_FALLING


def ending(result: Mapping[str, Any]) -> str:
    """Return what ended a training: `patience`, `updates`, `hours` or `unknown`.

    Older results do not say it: then it is what their figures show.
    """
    training, budget = result["training"], result["budget"]
    if training.get("ended"):
        return str(training["ended"])
    if budget["patience"] and _since_best(result) >= budget["patience"]:
        return "patience"
    if training["updates"] >= budget["max_update"]:
        return "updates"
    hours = (training.get("seconds") or 0) / 3600
    # the last line of the log may be some way before the end
    if budget["max_hours"] and hours >= 0.9 * budget["max_hours"]:
        return "hours"
    return "unknown"


def describe_ending(result: Mapping[str, Any]) -> str:
    """Return the same in words: `limit of 5,000 updates`."""
    budget = result["budget"]
    words = {
        "patience": f"no better loss in {budget['patience']} validations",
        "updates": f"limit of {budget['max_update']:,} updates",
        "hours": f"limit of {budget['max_hours']:g} hours",
    }
    return words.get(ending(result), "not known")
