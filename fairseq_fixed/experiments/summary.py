"""Results of several seeds become the rows of a table, with what the tests say of differences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_fixed.experiments.bootstrap import RESAMPLES, compare_results
from fairseq_fixed.experiments.convergence import converged
from fairseq_fixed.experiments.signatures import comparable

__all__ = ["describe_difference", "format_spread", "summarise"]


def summarise(
    results: Sequence[Mapping[str, Any]],
    *,
    baseline: str,
    significance: Mapping[str, Any] | None,
    alpha: float,
    resamples: int = RESAMPLES,
) -> list[dict[str, Any]]:
    """Return one row a system, in the order of `results`.

    Args:
        results: of :func:`results.make_result`, all systems and seeds.
        baseline: the baseline's slug.
        significance: what the verb `compare` wrote, by seed; None without other systems.
        alpha: p above it is called not significant.
        resamples: of the bootstrap over seeds.

    Returns:
        Rows with `system`, `slug`, `baseline` (whether it is), `seeds`, `parameters`,
        `tokens_per_second`, `updates`, `valid_loss` and its spread, `converged`, `scores` (by
        metric: `mean`, `spread` (sample standard deviation, None for one seed), `values`), and
        `differences` (by metric: `mean` against the baseline, `p` by test and seed, `over_seeds`
        (of :func:`bootstrap.compare_over_seeds`; None where it could not be made) and
        `significant`: by that test, or else only if every test with every seed says so), and
        `incomparable`: metrics whose signatures are not the baseline's, so that there is no
        difference.
    """
    by_slug: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        by_slug.setdefault(result["slug"], []).append(result)
    rows = []
    for slug, runs in by_slug.items():
        row: dict[str, Any] = {
            "system": runs[0]["system"],
            "slug": slug,
            "baseline": slug == baseline,
            "seeds": [run["seed"] for run in runs],
            "parameters": runs[0]["training"]["parameters"],
            "tokens_per_second": _mean(run["training"]["tokens_per_second"] for run in runs),
            "updates": [run["training"]["updates"] for run in runs],
            "valid_loss": _mean(run["training"]["valid_loss"] for run in runs),
            "valid_loss_spread": _spread(run["training"]["valid_loss"] for run in runs),
            "converged": all(converged(run) for run in runs),
            "scores": {},
            "differences": {},
            "incomparable": [],
        }
        for metric in runs[0]["scores"]:
            values = [r["scores"][metric]["score"] for r in runs if metric in r["scores"]]
            row["scores"][metric] = {
                "mean": statistics.mean(values),
                "spread": statistics.stdev(values) if len(values) > 1 else None,
                "values": values,
            }
        rows.append(row)
    base = next((row for row in rows if row["baseline"]), None)
    if base is None:
        return rows
    tests_of = {
        (metric, row["slug"]): _p_values(significance, metric, row, base) if significance else {}
        for row in rows
        for metric in row["scores"]
    }
    over_seeds = compare_results(
        results, baseline, resamples=resamples, tested={pair for pair, p in tests_of.items() if p}
    )
    for row in rows:
        if row is base or (significance is None and not over_seeds):
            continue
        for metric, score in row["scores"].items():
            if metric not in base["scores"]:
                continue
            if not _comparable([*by_slug[row["slug"]], *by_slug[baseline]], metric):
                row["incomparable"].append(metric)
                continue
            difference = score["mean"] - base["scores"][metric]["mean"]
            tests = tests_of[metric, row["slug"]]
            joint = over_seeds.get(metric, {}).get(row["slug"])  # None: not counted
            row["differences"][metric] = {
                "mean": difference,
                "p": tests,
                "over_seeds": joint,
                "significant": joint["p"] <= alpha
                if joint
                else bool(tests)
                and all(p is not None and p <= alpha for ps in tests.values() for p in ps),
            }
    return rows


def _comparable(runs: Sequence[Mapping[str, Any]], metric: str) -> bool:
    scores = [run["scores"][metric] for run in runs if metric in run["scores"]]
    signatures = [score.get("signature", "") for score in scores]
    return all(comparable(signatures[0], other) for other in signatures)


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _spread(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 else None


def _p_values(
    significance: Mapping[str, Any], metric: str, row: Mapping[str, Any], base: Mapping[str, Any]
) -> dict[str, list[float | None]]:
    """Return the p by test, of the seeds that the table holds of both."""
    found: dict[str, list[float | None]] = {}
    both = {str(seed) for seed in row["seeds"]} & {str(seed) for seed in base["seeds"]}
    for seed, content in significance["seeds"].items():
        for test, by_metric in content["tests"].items() if seed in both else ():
            p = by_metric.get(metric, {}).get(row["slug"], {}).get("p")
            found.setdefault(test, []).append(p)
    # a system that was not tested: no test rather than one without a value
    return {test: values for test, values in found.items() if any(p is not None for p in values)}


def format_spread(score: Mapping[str, Any]) -> str:
    """Return `16.7`, or `16.7 ± 0.3` (standard deviation) over several seeds."""
    if score["spread"] is None:
        return f"{score['mean']:.1f}"
    return f"{score['mean']:.1f} ± {score['spread']:.1f}"


def describe_difference(difference: Mapping[str, Any]) -> str:
    """Return `+1.2 (p = 0.001)`, or `+0.1 (not significant, p = 0.31)`.

    The p is that over all seeds, where there is one, else the largest of all tests and seeds.
    """
    joint = difference.get("over_seeds")
    values = [p for ps in difference["p"].values() for p in ps if p is not None]
    values = [joint["p"]] if joint else values
    text = f"{difference['mean']:+.1f}"
    if not values:
        return text
    largest = max(values)
    stated = f"p = {largest:.3f}" if largest >= 0.001 else "p < 0.001"
    return (
        f"{text} ({stated})" if difference["significant"] else f"{text} (not significant, {stated})"
    )
