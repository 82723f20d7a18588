"""fairseq-generate's output becomes one detokenised line a sentence, in the corpus's order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.errors import ExperimentError

__all__ = ["collect", "parse_generated"]

logger = logging.getLogger(__name__)


def parse_generated(lines: Iterable[str]) -> dict[int, str]:
    r"""Return the best hypothesis of each sentence, as subwords joined by spaces.

    Args:
        lines: `H-12\t-0.53\t▁In ▁the ▁beginning`, among others. Of an n-best list the first
            counts, which is the best.

    Raises:
        ExperimentError: a line with a hypothesis has no number or too few columns.
    """
    found: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.startswith("H-"):
            continue
        columns = line.rstrip("\n").split("\t")
        index = columns[0][2:]
        if len(columns) != 3 or not index.isdigit():
            raise ExperimentError(
                f"line {number} of fairseq-generate's output is cut or damaged: {line[:80]!r}; "
                "translate again"
            )
        found.setdefault(int(index), columns[2])
    return found


def collect(
    generated: Path,
    *,
    source: Sequence[str],
    target: Sequence[str],
    max_positions: int,
    decode: Callable[[Sequence[str]], list[str]],
) -> tuple[list[str], dict[str, Any]]:
    """Return one translation a sentence and an account of what is missing.

    fairseq-generate leaves out sentences longer than the model's positions. Those get an empty
    line and are counted; any other gap is an error.

    Args:
        generated: the file that fairseq-generate wrote.
        source: the source sentences as subwords; `</s>` is counted on top.
        target: the references as subwords: fairseq leaves out a pair for a long one, too.
        max_positions: the longest sentence, in subwords with `</s>`.
        decode: turns lines of subwords into text.

    Returns:
        The lines; and `sentences`, `too_long_source` and `too_long_reference` (numbers from 1 of
        the sentences without a translation) and `empty` (how many translations are empty).

    Raises:
        ExperimentError: a sentence is missing, or there are more than the source has.
    """
    with generated.open(encoding="utf-8", newline="\n") as file:
        found = parse_generated(file)
    extra = [i for i in found if i >= len(source)]
    if extra:
        raise ExperimentError(
            f"{generated} holds sentence {extra[0] + 1}, but the test set has {len(source)}: they "
            "do not belong together; translate again"
        )
    missing = [i for i in range(len(source)) if i not in found]
    too_long = [i for i in missing if _length(source[i]) > max_positions]
    long_reference = [
        i for i in missing if i not in set(too_long) and _length(target[i]) > max_positions
    ]
    lost = sorted(set(missing) - set(too_long) - set(long_reference))
    if lost:
        raise ExperimentError(
            f"{generated} has no translation of {len(lost)} of {len(source)} sentences (first: "
            f"{lost[0] + 1}) although they are not too long: fairseq-generate was interrupted, or "
            "ran without --required-batch-size-multiple 1; translate again"
        )
    if missing:
        logger.warning(
            "%d of %d sentences have no translation, for they or their references are longer than "
            "%d subwords; they count as empty. Raise model.max_positions to translate them",
            len(missing),
            len(source),
            max_positions,
        )
    lines = decode([found.get(i, "") for i in range(len(source))])
    if len(lines) != len(source):
        raise ExperimentError(f"{len(source)} sentences became {len(lines)} lines")
    lines = [" ".join(line.split()) for line in lines]
    return lines, {
        "sentences": len(source),
        "too_long_source": [i + 1 for i in too_long],
        "too_long_reference": [i + 1 for i in long_reference],
        "empty": sum(not line for line in lines),
    }


def _length(line: str) -> int:
    return len(line.split(" ")) + 1 if line.strip(" ") else 1
