"""Does a model prefer the reference to a variant with one error? By type and distance of the error.

BLEU hardly sees whether a verb agrees with its subject eight words away. A contrastive test set
asks just that: the model reads the source, both translations are forced on it, and it is right
where the reference gets the higher probability (Sennrich 2017). Nothing is searched for.

A score is the mean log-probability a subword, as fairseq's `--score-reference` has it, or the sum:
the mean does not favour the shorter of two variants. `</s>` counts as a subword.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_fixed.experiments.contrast_pairs import Item
from fairseq_fixed.experiments.trained import Loaded, move

__all__ = ["Judgement", "LogProbability", "judge", "log_probabilities", "tally", "wilson"]

_MOST_DISTANCE = 15  # longer ones are counted together, as in LingEval97
_Z = 1.959963984540054  # of a 95 % interval


@dataclass(frozen=True)
class LogProbability:
    """Of a translation, given its source: the natural logarithm, and of how many subwords."""

    total: float
    subwords: int

    def score(self, how: str) -> float:
        """Return the `sum`, or the `mean` a subword."""
        return self.total if how == "sum" else self.total / self.subwords


def log_probabilities(
    loaded: Loaded,
    pairs: Sequence[tuple[str, str]],
    *,
    max_tokens: int = 4000,
    longest: int | None = None,
) -> list[LogProbability | None]:
    """Force translations on a model.

    Args:
        loaded: the model.
        pairs: source and translation, as subwords between spaces.
        max_tokens: subwords a batch, the padding included, of the longer side.
        longest: subwords with `</s>`; None: the model's positions alone.

    Returns:
        One a pair, in their order; None where a side is longer than the model's positions.
    """
    from fairseq.data import LanguagePairDataset

    task, model = loaded.task, loaded.model
    dictionaries = (task.source_dictionary, task.target_dictionary)
    sides = [
        [
            dictionary.encode_line(text, add_if_not_exist=False, append_eos=True).long()
            for text in texts
        ]
        for dictionary, texts in zip(dictionaries, zip(*pairs, strict=True), strict=True)
    ]
    limits = [
        min(limit, longest or limit)
        for limit in (model.encoder.max_positions(), model.decoder.max_positions())
    ]
    # What is the same to the model is scored once: in another batch the last digits would differ,
    # and chance decide between two variants that are told apart by an unknown character alone.
    first: dict[tuple[tuple[int, ...], ...], int] = {}
    like = [
        first.setdefault(tuple(tuple(text.tolist()) for text in texts), i)
        for i, texts in enumerate(zip(*sides, strict=True))
    ]
    fitting = [
        i
        for i in first.values()
        if all(len(side[i]) <= limit for side, limit in zip(sides, limits, strict=True))
    ]
    data = LanguagePairDataset(
        sides[0],
        [len(text) for text in sides[0]],
        dictionaries[0],
        sides[1],
        [len(text) for text in sides[1]],
        dictionaries[1],
        left_pad_source=task.cfg.left_pad_source,
        left_pad_target=task.cfg.left_pad_target,
    )
    scorer = task.build_generator([model], _ScoreReference())
    found: list[LogProbability | None] = [None] * len(pairs)
    for batch in _batches(fitting, sides, max_tokens):
        sample = move(data.collater([data[i] for i in batch]), loaded.device)
        scored = task.inference_step(scorer, [model], sample)
        for i, hypotheses in zip(sample["id"].tolist(), scored, strict=True):
            single = hypotheses[0]["positional_scores"].double()
            found[i] = LogProbability(float(single.sum()), len(single))
    return [found[i] for i in like]


class _ScoreReference:
    """The settings that make fairseq build a scorer rather than a search."""

    score_reference = True


def _batches(
    indices: Sequence[int], sides: Sequence[Sequence[Any]], max_tokens: int
) -> Iterator[list[int]]:
    """Yield indices of pairs of like lengths, the longest first: what does not fit fails soon."""

    def size(i: int) -> int:
        return max(len(side[i]) for side in sides)

    batch: list[int] = []
    for i in sorted(indices, key=lambda i: (size(i), i), reverse=True):
        if batch and size(batch[0]) * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@dataclass(frozen=True)
class Judgement:
    """What a model says of a sentence: scores of the reference and of each wrong variant.

    A score is None where the sentence was too long for the model.
    """

    item: Item
    reference: float | None
    wrong: tuple[float | None, ...]


def judge(
    loaded: Loaded,
    items: Sequence[Item],
    *,
    how: str = "mean",
    encode: Callable[[Iterable[str]], Iterable[str]] = lambda lines: lines,
    max_tokens: int = 4000,
    longest: int | None = None,
) -> list[Judgement]:
    """Score all references and variants.

    Args:
        loaded: the model.
        items: the test set.
        how: `mean` or `sum`.
        encode: turns lines of text into subwords between spaces.
        max_tokens: of :func:`log_probabilities`.
        longest: the same.
    """
    texts = [
        (item.source, text)
        for item in items
        for text in (item.reference, *(wrong.text for wrong in item.wrong))
    ]
    sources, targets = (list(encode(side)) for side in zip(*texts, strict=True))
    pairs = list(zip(sources, targets, strict=True))
    found = log_probabilities(loaded, pairs, max_tokens=max_tokens, longest=longest)
    scores = iter([None if one is None else one.score(how) for one in found])
    return [
        Judgement(item, next(scores), tuple(next(scores) for _ in item.wrong)) for item in items
    ]


def wilson(right: int, total: int, z: float = _Z) -> tuple[float, float]:
    """Return Wilson's score interval of a share (95 %): sound for few trials and near 0 and 1."""
    share, n = right / total, total
    middle = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - spread) / (1 + z * z / n), (middle + spread) / (1 + z * z / n)


def tally(judgements: Iterable[Judgement]) -> dict[str, Any]:
    """Count how often the reference won.

    Returns:
        `pairs` (a reference against one variant), `sentences` (against all of its variants at
        once), `by_type` and `by_distance` (pairs), each with `right`, `total`, `accuracy` and
        `interval`; `ties`, pairs with equal scores, which count as wrong; `too_long`, pairs that
        were left out because a side is longer than the model's positions.
    """
    pairs: list[bool] = []
    sentences: list[bool] = []
    by_type: dict[str, list[bool]] = {}
    by_distance: dict[int, list[bool]] = {}
    ties = too_long = 0
    for judgement in judgements:
        wins = []
        for wrong, score in zip(judgement.item.wrong, judgement.wrong, strict=True):
            if judgement.reference is None or score is None:
                too_long += 1
                continue
            win = judgement.reference > score
            ties += judgement.reference == score
            wins.append(win)
            if wrong.type is not None:
                by_type.setdefault(wrong.type, []).append(win)
            if wrong.distance is not None:
                distance = min(wrong.distance, _MOST_DISTANCE + 1)
                by_distance.setdefault(distance, []).append(win)
        pairs += wins
        if len(wins) == len(judgement.wrong):
            sentences.append(all(wins))
    return {
        "pairs": _share(pairs),
        "sentences": _share(sentences),
        "by_type": {name: _share(wins) for name, wins in by_type.items()},
        "by_distance": {
            str(d) if d <= _MOST_DISTANCE else f"over {_MOST_DISTANCE}": _share(by_distance[d])
            for d in sorted(by_distance)
        },
        "ties": ties,
        "too_long": too_long,
    }


def _share(wins: Sequence[bool]) -> Mapping[str, Any]:
    right, total = sum(wins), len(wins)
    if not total:
        return {"right": 0, "total": 0, "accuracy": None, "interval": None}
    return {
        "right": right,
        "total": total,
        "accuracy": right / total,
        "interval": list(wilson(right, total)),
    }
