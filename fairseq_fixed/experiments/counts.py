"""Counts a sentence: what sacrebleu's corpus scores are made of, without any text.

BLEU and chrF of a corpus are functions of sums over its sentences: of n-grams in the translation,
in the reference, in both. Kept a sentence, these sums allow every later test (other samples of the
sentences, further seeds, further systems) when the translations themselves are gone or may not be
passed on.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_fixed.experiments.errors import ExperimentError

__all__ = ["count", "pack", "score_of", "summed", "unpack", "unpack_lengths"]

_TYPES = ("<u1", "<u2", "<u4", "<i4")  # the first that holds all of a metric's counts is taken


def count(
    hypotheses: Sequence[str], reference: Sequence[str], metrics: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return sacrebleu's sufficient statistics by metric, (sentences, columns) whole numbers.

    Args:
        hypotheses: the translations.
        reference: one reference a sentence.
        metrics: from `scoring.make_metrics`.
    """
    return {
        name: np.asarray(
            metric._extract_corpus_statistics(list(hypotheses), [list(reference)])
        ).astype(np.int64)
        for name, metric in metrics.items()
    }


def score_of(metric: Any, sums: np.ndarray) -> float:
    """Return the corpus score that a metric makes of counts summed over sentences."""
    return float(metric._compute_score_from_stats(sums.tolist()).score)


def summed(weights: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return sums of counts over samples of the sentences, exact whole numbers.

    Args:
        weights: how often each sample has each sentence, (samples, sentences).
        table: (sentences, columns).

    Returns:
        (samples, columns).
    """
    # Products of floats use BLAS, and whole numbers below 2^53 are exact in them.
    return (weights.astype(np.float64) @ table.astype(np.float64)).astype(np.int64)


def pack(
    counts: Mapping[str, np.ndarray],
    reference: Sequence[str],
    lengths: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Return counts as plain data for JSON: some 20 kB a thousand sentences.

    Args:
        counts: of :func:`count`.
        reference: of which a hash is kept, so that no test compares what has other references.
        lengths: of the sources, kept beside.
    """
    text = "".join(f"{line}\n" for line in reference)
    packed = {
        "sentences": len(reference),
        "reference": hashlib.sha256(text.encode()).hexdigest()[:16],
        "counts": {name: _pack(table) for name, table in counts.items()},
    }
    if lengths is not None:
        packed["source_lengths"] = _pack(np.asarray(lengths)[:, None])
    return packed


def _pack(table: np.ndarray) -> dict[str, Any]:
    low, high = table.min(initial=0), table.max(initial=0)
    kind = next(t for t in _TYPES if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    data = zlib.compress(table.T.astype(kind).tobytes(), 9)  # column by column
    return {
        "columns": table.shape[1],
        "type": kind,
        "data": base64.b64encode(data).decode("ascii"),
    }


def unpack(packed: Mapping[str, Any], name: str = "these counts") -> dict[str, np.ndarray]:
    """Return what :func:`pack` was given.

    Args:
        packed: of :func:`pack`.
        name: what to call it in an error.

    Raises:
        ExperimentError: it is damaged.
    """
    try:
        sentences = packed["sentences"]
        return {m: _unpack(entry, sentences) for m, entry in packed["counts"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
        raise ExperimentError(
            f"{name}: its counts a sentence are damaged ({error}); make them again with "
            "fairseq-fixed collect RUN"
        ) from error


def unpack_lengths(packed: Mapping[str, Any]) -> np.ndarray | None:
    """Return the lengths of the sources; None where they were not kept."""
    if "source_lengths" not in packed:
        return None
    return _unpack(packed["source_lengths"], packed["sentences"])[:, 0]


def _unpack(entry: Mapping[str, Any], sentences: int) -> np.ndarray:
    data = zlib.decompress(base64.b64decode(entry["data"], validate=True))
    table = np.frombuffer(data, dtype=entry["type"])
    return table.reshape(entry["columns"], sentences).T.astype(np.int64)
