"""Scores by the length of the source, and by how far it lies from the lengths seen in training.

Do fixed heads bear long sentences as well as learned ones? And sentences longer than any in
training? Lengths are in subwords, `</s>` not counted: what the model's positions count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_fixed.experiments.counts import count, pack, score_of
from fairseq_fixed.experiments.errors import ExperimentError

__all__ = ["EDGES", "SMALL", "account", "describe_training", "file_lengths", "score_by_length"]

EDGES = (10, 20, 30, 40, 50, 60, 80, 100)  # the longest sentence of each bucket; the last is open
SMALL = 50  # a corpus score of fewer sentences says little: such buckets are marked


def subword_lengths(lines: Iterable[str] | Iterable[bytes]) -> Iterator[int]:
    """Yield the number of subwords of each line, which stand between spaces."""
    for line in lines:
        yield len(line.split())


def file_lengths(path: Path) -> Iterator[int]:
    """Yield the same of a file, which may be larger than memory.

    Raises:
        ExperimentError: it cannot be read.
    """
    try:
        with path.open("rb") as lines:
            yield from subword_lengths(lines)
    except OSError as error:
        raise ExperimentError(f"cannot read {path}: {error.strerror or error}") from error


def describe_training(lengths: Iterable[int]) -> dict[str, int]:
    """Return what the lengths of the training sentences are like.

    Returns:
        `sentences`, `median`, `percentile95`, `percentile99` and `longest`: lengths that occur,
        so that at least 95 % of the sentences are no longer than `percentile95`.

    Raises:
        ExperimentError: there are none.
    """
    counted = Counter(lengths)
    if not counted:
        raise ExperimentError("the training text is empty: there are no lengths to compare with")
    total = counted.total()

    def covering(percent: int) -> int:
        """Return the smallest length that so many percent of the sentences do not exceed."""
        seen = 0
        for length in sorted(counted):
            seen += counted[length]
            if 100 * seen >= percent * total:
                break
        return length

    return {
        "sentences": total,
        "median": covering(50),
        "percentile95": covering(95),
        "percentile99": covering(99),
        "longest": max(counted),
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
            name: score_of(metrics[name], table[chosen].sum(0))
            for name, table in counts.items()
            if count
        }
        return {
            "from": low,
            "to": high,
            "sentences": count,
            "small": count < SMALL,
            "scores": scores,
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
    train: Iterable[int],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is kept of a scored translation beside its scores.

    Args:
        hypotheses: the translations.
        reference: one reference a sentence.
        metrics: from `scoring.make_metrics`.
        source: the test set's sources as subwords.
        train: the lengths of the training set's sources, as :func:`file_lengths` has them.

    Returns:
        Of `counts.pack`, and of :func:`score_by_length`.
    """
    tables = count(hypotheses, reference, metrics)
    lengths = list(subword_lengths(source))
    training = describe_training(train)
    by_length = score_by_length(tables, metrics, lengths, training)
    return pack(tables, reference, lengths), by_length
