"""A bootstrap over sentences and seeds: is a system better, or were its seeds lucky?

The tests of :mod:`fairseq_fixed.experiments.scoring` are about two trained models and resample
sentences alone: however small their p, another seed may turn the difference round. Here a system
is all of its seeds. One resample

1. draws as many sentences as the test set has, with replacement: the same for every system and
   every seed, for they have all translated the same text;
2. draws k - 1 of a system's k seeds, with replacement, for each system by itself: seed 1 of one
   system has nothing in common with seed 1 of another. k - 1 draws rather than k make the variance
   of the mean unbiased (Rao and Wu 1988): k would make it too small by the factor (k - 1)/k. Of a
   single seed nothing can be drawn. Beside a system of several it borrows that one's luck: the
   deviation of one of its seeds, drawn, from their mean, times √(k/(k - 1)), is added. Where both
   have one seed there is none to borrow, and the test is about the two trained models;
3. takes the difference of the means, over the drawn seeds, of the corpus scores on those sentences.

p is the share of resamples whose difference lies at least as far from the mean of all resamples as
the observed difference lies from zero, in either direction; both counts raised by one, as usual.

How coarse it is: two or three seeds are few, and what they say of seeds in general is rough. Of
equal systems that differ by their seeds' luck alone (normal, in 20,000 simulated pairs), p < 0.05
came up for 33 % with 2 seeds a system, 13 % with 3, 9 % with 5, 7 % with 10, where 5 % would be
right; with as much variance from sentences as from seeds, for 8 %, 7 %, 6 % and 5 %. Of one seed
against 2, 3, 5 or 10 (4,000 pairs) for 39 %, 21 %, 14 % and 9 %, and with as much from sentences
for 9 %, 7 %, 6 % and 6 %; without borrowed luck it would be 66 %, 43 %, 49 % and 57 %. A
permutation of the seeds alone, which is exact, could never go below p = 0.1 with 3 seeds a system.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_fixed.experiments.counts import score_of, summed, unpack
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.scoring import SEED, make_metrics

__all__ = ["RESAMPLES", "compare_over_seeds", "compare_results"]

RESAMPLES = 1000


def compare_over_seeds(
    metric: Any,
    counts: Mapping[str, Sequence[np.ndarray]],
    baseline: str,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, dict[str, Any]]:
    """Test each system against the baseline over all seeds.

    Args:
        metric: one of sacrebleu's.
        counts: by system: a table (sentences, columns) of `counts.count` a seed. The tables of all
            are about the same sentences.
        baseline: which system is the baseline.
        resamples: how many.
        seed: of the random numbers.

    Returns:
        By system, the baseline left out: `difference` of the mean scores, `interval` (2.5th and
        97.5th percentile of the resamples), `p`, `seeds` (the system's and the baseline's number),
        `resamples`.
    """
    sentences = len(counts[baseline][0])
    draw = np.random.default_rng(seed)
    borrow = np.random.default_rng([seed, 1])
    # How often each sentence is drawn: (resamples, sentences).
    weights = draw.multinomial(sentences, np.full(sentences, 1 / sentences), size=resamples)
    means: dict[str, float] = {}
    resampled: dict[str, np.ndarray] = {}
    luck: dict[str, np.ndarray] = {}  # of systems with several seeds: how one of them is off
    for name, tables in counts.items():
        means[name] = statistics.mean(score_of(metric, table.sum(0)) for table in tables)
        scores = np.array(
            [[score_of(metric, sums) for sums in summed(weights, table)] for table in tables]
        )  # (seeds, resamples)
        k = len(tables)
        drawn = draw.integers(k, size=(max(1, k - 1), resamples))
        resampled[name] = np.take_along_axis(scores, drawn, axis=0).mean(0)
        if k > 1:
            deviations = (scores - scores.mean(0)) * (k / (k - 1)) ** 0.5
            one = borrow.integers(k, size=(1, resamples))
            luck[name] = np.take_along_axis(deviations, one, axis=0)[0]
    found = {}
    for name in counts:
        if name == baseline:
            continue
        difference = means[name] - means[baseline]
        differences = resampled[name] - resampled[baseline]
        if (name in luck) != (baseline in luck):  # the single seed is as lucky as the others
            differences = differences + luck[name if name in luck else baseline]
        far = np.abs(differences - differences.mean()) >= abs(difference)
        found[name] = {
            "difference": difference,
            "interval": [float(x) for x in np.percentile(differences, (2.5, 97.5))],
            # no difference at all is never significant
            "p": 1.0 if difference == 0 else float((far.sum() + 1) / (resamples + 1)),
            "seeds": [len(counts[name]), len(counts[baseline])],
            "resamples": resamples,
        }
    return found


def compare_results(
    results: Sequence[Mapping[str, Any]],
    baseline: str,
    *,
    resamples: int = RESAMPLES,
    tested: Container[tuple[str, str]] = (),
) -> dict[str, dict[str, dict[str, Any]]]:
    """Test what results hold, wherever their models were trained, against the baseline.

    Args:
        results: of :func:`results.make_result`, of all systems and seeds.
        baseline: the baseline's slug.
        resamples: how many.
        tested: metrics and slugs that `scoring.compare` has tested: with one seed each, they are
            left to that.

    Returns:
        By metric, by slug: of :func:`compare_over_seeds`. Systems are left out that have a result
        without counts a sentence.

    Raises:
        ExperimentError: results are about different test sets, or damaged.
    """
    by_slug: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        by_slug.setdefault(result["slug"], []).append(result)
    counted = {
        slug: runs for slug, runs in by_slug.items() if all(run.get("statistics") for run in runs)
    }
    if baseline not in counted:
        return {}
    _check_test_sets(list(itertools.chain(*counted.values())))
    tables = {
        slug: [unpack(run["statistics"], f"{run['system']}, seed {run['seed']}") for run in runs]
        for slug, runs in counted.items()
    }
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for metric in tables[baseline][0]:
        wanted = [
            slug
            for slug, seeds in tables.items()
            if all(metric in counts for counts in (*seeds, *tables[baseline]))
            and (len(seeds) > 1 or len(tables[baseline]) > 1 or (metric, slug) not in tested)
        ]
        if set(wanted) - {baseline}:
            # The tokenizer has done its part: counts become a score without it.
            scorer = make_metrics([metric], "none")[metric]
            having = {
                slug: [counts[metric] for counts in tables[slug]]
                for slug in dict.fromkeys((baseline, *wanted))
            }
            found[metric] = compare_over_seeds(scorer, having, baseline, resamples=resamples)
    return found


def _check_test_sets(results: Sequence[Mapping[str, Any]]) -> None:
    first = results[0]
    for other in results:
        for key in ("sentences", "reference"):
            if other["statistics"][key] != first["statistics"][key]:
                raise ExperimentError(
                    f"{first['system']}, seed {first['seed']}, and {other['system']}, seed "
                    f"{other['seed']}, were scored on different test sets: no table can compare "
                    "them; remove the results of one"
                )
