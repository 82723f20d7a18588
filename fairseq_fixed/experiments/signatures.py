"""Which signatures scores have: whether they can be compared, and how a page states them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairseq_fixed.experiments.names import METRIC_NAMES

__all__ = ["comparable", "signature_lines", "signatures_of"]


def comparable(one: str, other: str) -> bool:
    """Return whether two signatures differ in sacrebleu's version at most."""
    return _settings(one) == _settings(other)


def _settings(signature: str) -> list[str]:
    return [part for part in signature.split("|") if not part.startswith("version:")]


def signatures_of(result: Mapping[str, Any]) -> dict[str, str]:
    """Return a result's signatures by metric."""
    return {
        metric: score["signature"]
        for metric, score in result["scores"].items()
        if "signature" in score
    }


def signature_lines(named: Iterable[tuple[str, Mapping[str, str]]]) -> list[str]:
    """Return a line of Markdown for each metric; where signatures differ, it says whose is which.

    Args:
        named: what has been scored, and its signatures by metric.
    """
    whose: dict[str, dict[str, list[str]]] = {}
    for name, signatures in named:
        for metric, signature in signatures.items():
            names = whose.setdefault(metric, {}).setdefault(signature, [])
            if name not in names:
                names.append(name)
    lines = []
    for metric, found in whose.items():
        texts = [
            f"`{signature}`" + (f" ({', '.join(names)})" if len(found) > 1 else "")
            for signature, names in found.items()
        ]
        lines.append(f"- {METRIC_NAMES.get(metric, metric)}: {', '.join(texts)}")
    return lines
