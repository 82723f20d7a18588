"""How soon a system is as good as the baseline ever gets: updates and time, as ratios.

Better after the same number of updates may mean better, or only sooner. For each seed, the target
is the lowest validation loss of the baseline's training with that seed; a system has reached it at
its first validation with a loss as low. The ratio divides the updates (the seconds) that took by
those the baseline took itself: 0.5 is twice as fast, above 1 slower, `None` never within the
training's budget. Validations are some way apart, and the ratios as coarse as that.

Seconds are those of a training's own median pace: a machine that stood still for a while says
nothing about a system.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_fixed.experiments.names import markdown_table

__all__ = ["loss_of", "losses_of", "reach", "seconds_an_update", "speed_section"]


def loss_of(point: Mapping[str, float]) -> float | None:
    """Return a validation's loss in bits a subword, without label smoothing where it is known."""
    return point.get("nll_loss", point.get("loss"))


def losses_of(
    curve: Sequence[Mapping[str, float]],
) -> list[tuple[float, Mapping[str, float]]]:
    """Return the validations that have a loss, behind it."""
    return [(loss, point) for point in curve if (loss := loss_of(point)) is not None]


def seconds_an_update(curve: Sequence[Mapping[str, float]]) -> float | None:
    """Return the median, between validations, of the seconds an update took; None: not known.

    Not the last validation's clock: suspended, or resumed hours later on a clock that ran on, a
    training has stretches in which nothing was computed.
    """
    points = [(0, 0.0), *((p["update"], p.get("wall") or 0.0) for p in curve if p["update"])]
    if not all(wall for _, wall in points[1:]):
        return None
    steps = [
        (wall - wall_before) / (update - before)
        for (before, wall_before), (update, wall) in itertools.pairwise(points)
        if update > before
    ]
    # the first holds the start-up
    steps = steps[1:] or steps
    return statistics.median(steps) if steps else None


def reach(results: Sequence[Mapping[str, Any]], baseline: str) -> list[dict[str, Any]]:
    """Return a row for each system that shares seeds with the baseline.

    Args:
        results: of :func:`results.make_result`.
        baseline: the baseline's slug.

    Returns:
        Rows with `system`, `slug`; `seeds`, a list with `seed`, `target` (the loss), `best` (the
        system's own lowest), `updates`, `seconds` (None: never), `updates_ratio` and
        `seconds_ratio`; and the medians of the ratios over seeds, in which never is the largest
        number there is, and a median of never is None. Without times there is no `seconds_ratio`.
    """
    bases = {
        r["seed"]: (best, seconds_an_update(r["curve"]))
        for r in results
        if r["slug"] == baseline and (best := _best(r["curve"])) is not None
    }
    by_slug: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        if result["seed"] in bases and _best(result["curve"]) is not None:
            by_slug.setdefault(result["slug"], []).append(result)
    rows = []
    for slug, runs in by_slug.items():
        if slug == baseline:
            continue
        seeds = [_reach(run, *bases[run["seed"]]) for run in runs]
        row = {"system": runs[0]["system"], "slug": slug, "seeds": seeds}
        for key in ("updates_ratio", "seconds_ratio"):
            if all(key in seed for seed in seeds):
                row[key] = _median([seed[key] for seed in seeds])
        rows.append(row)
    return rows


def _best(curve: Sequence[Mapping[str, float]]) -> Mapping[str, float] | None:
    """Return the validation with the lowest loss, the first of several."""
    known = losses_of(curve)
    return min(known, key=lambda pair: (pair[0], pair[1]["update"]))[1] if known else None


def _reach(
    run: Mapping[str, Any], target: Mapping[str, float], target_pace: float | None
) -> dict[str, Any]:
    wanted = loss_of(target) or 0.0
    curve = losses_of(run["curve"])
    there = next((point for loss, point in curve if loss <= wanted), None)
    found: dict[str, Any] = {
        "seed": run["seed"],
        "target": wanted,
        "best": min(loss for loss, _ in curve),
        "updates": None if there is None else there["update"],
        "updates_ratio": None if there is None else there["update"] / target["update"],
    }
    pace = seconds_an_update(run["curve"])
    if target_pace and pace:
        seconds = None if there is None else there["update"] * pace
        found["seconds"] = seconds
        found["seconds_ratio"] = (
            None if seconds is None else seconds / (target["update"] * target_pace)
        )
    return found


def _median(ratios: Sequence[float | None]) -> float | None:
    middle = statistics.median(math.inf if ratio is None else ratio for ratio in ratios)
    return middle if math.isfinite(middle) else None


def speed_section(results: Sequence[Mapping[str, Any]], baseline: str) -> list[str]:
    """Return Markdown lines: the table of :func:`reach`; none where there is nothing to say."""
    rows = reach(results, baseline)
    if not rows:
        return []
    name = next(r["system"] for r in results if r["slug"] == baseline)
    several = any(len(row["seeds"]) > 1 for row in rows)
    header = ["system", "updates", "time"]
    body = [
        [row["system"], _cell(row, "updates_ratio"), _cell(row, "seconds_ratio")] for row in rows
    ]
    lines = [
        *markdown_table(header, body),
        "",
        f"- Until the valid loss is as low as {name}'s lowest, in units of what {name} took: 0.50 "
        "is twice as fast; never: not within its training. Counted at validations.",
    ]
    if several:
        lines.append("- Median over seeds, and the seeds in brackets, each against the same seed.")
    lines.append(
        "- Time is at each training's median pace, pauses left out. It compares where all had the "
        "same share of a machine."
    )
    return [*lines, ""]


def _cell(row: Mapping[str, Any], key: str) -> str:
    if key not in row:
        return "not known"
    text = _ratio(row[key])
    if len(row["seeds"]) == 1:
        return text
    return f"{text} ({', '.join(_ratio(seed[key]) for seed in row['seeds'])})"


def _ratio(ratio: float | None) -> str:
    return "never" if ratio is None else f"{ratio:.2f}"
