"""Scores by the length of the source, and by how far it lies from the lengths seen in training.

Do fixed heads bear long sentences as well as learned ones? And sentences longer than any in
training? Lengths are in subwords, `</s>` not counted: what the model's positions count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_fixed.experiments.counts import count, pack, score_of
from fairseq_fixed.experiments.errors import ExperimentError

__all__ = ["EDGES", "SMALL", "account", "describe_training", "score_by_length", "subword_lengths"]

EDGES = (10, 20, 30, 40, 50, 60, 80, 100)  # the longest sentence of each bucket; the last is open
SMALL = 50  # a corpus score of fewer sentences says little: such buckets are marked


def subword_lengths(lines: Sequence[str]) -> list[int]:
    """Return the number of subwords of each line, which stand between spaces."""
    return [len(line.split()) for line in lines]


def describe_training(lengths: Sequence[int]) -> dict[str, int]:
    """Return what the lengths of the training sentences are like.

    Returns:
        `sentences`, `median`, `percentile95`, `percentile99` and `longest`: lengths that occur,
        so that at least 95 % of the sentences are no longer than `percentile95`.

    Raises:
        ExperimentError: there are none.
    """
    if not lengths:
        raise ExperimentError("the training text is empty: there are no lengths to compare with")
    half, p95, p99 = np.percentile(lengths, (50, 95, 99), method="higher")
    return {
        "sentences": len(lengths),
        "median": int(half),
        "percentile95": int(p95),
        "percentile99": int(p99),
        "longest": int(max(lengths)),
    }


def score_by_length(
    counts: Mapping[str, np.ndarray],
    metrics: Mapping[str, Any],
    lengths: Sequence[int],
    training: Mapping[str, int],
) -> dict[str, Any]:
    """Return corpus scores of the sentences of each length.

    Args:
        counts: of `counts.count`, by metric.
        metrics: sacrebleu's, by the same names.
        lengths: of the test set's sources, in subwords.
        training: of :func:`describe_training`.

    Returns:
        `unit`; `training`; and two lists of buckets, `by_length` and `by_training`. A bucket has
        `from` and `to` (None: open), `sentences`, `small` (whether there are too few to say much)
        and `scores` by metric, those of `by_training` a `name`, too. Empty buckets are left out of
        `by_length`; of `by_training` none is: no sentence beyond training is an answer. A bucket
        has scores only if it has sentences.

    Raises:
        ExperimentError: the numbers of sentences differ.
    """
    for name, table in counts.items():
        if len(table) != len(lengths):
            raise ExperimentError(
                f"{name} was counted for {len(table)} sentences, but the source has {len(lengths)}"
            )
    array = np.asarray(lengths)

    def bucket(low: int, high: int | None) -> dict[str, Any]:
        chosen = (array >= low) & (array <= (np.inf if high is None else high))
        count = int(chosen.sum())
        scores = {
            name: score_of(metrics[name], table[chosen].sum(0)) for name, table in counts.items()
        }
        return {
            "from": low,
            "to": high,
            "sentences": count,
            "small": count < SMALL,
            "scores": scores if count else {},
        }

    by_length = [
        bucket(low + 1 if low else 0, high)
        for low, high in zip((0, *EDGES), (*EDGES, None), strict=True)
    ]
    limits = [training[key] for key in ("percentile95", "percentile99", "longest")]
    by_training = [
        {"name": name, **bucket(low, high)}
        for name, low, high in zip(
            ("up to 95 %", "up to 99 %", "up to the longest", "longer than any"),
            (0, *(limit + 1 for limit in limits)),
            (*limits, None),
            strict=True,
        )
    ]
    return {
        "unit": "subwords",
        "training": dict(training),
        "by_length": [b for b in by_length if b["sentences"]],
        "by_training": by_training,
    }


def account(
    hypotheses: Sequence[str],
    reference: Sequence[str],
    metrics: Mapping[str, Any],
    *,
    source: Sequence[str],
    train: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is kept of a scored translation beside its scores.

    Args:
        hypotheses: the translations.
        reference: one reference a sentence.
        metrics: from `scoring.make_metrics`.
        source: the test set's sources as subwords.
        train: the training set's sources as subwords.

    Returns:
        Of `counts.pack`, and of :func:`score_by_length`.
    """
    tables = count(hypotheses, reference, metrics)
    lengths = subword_lengths(source)
    training = describe_training(subword_lengths(train))
    by_length = score_by_length(tables, metrics, lengths, training)
    return pack(tables, reference, lengths), by_length
