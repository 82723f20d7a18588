"""A corpus's mix of lengths: what batches are made of in training."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy

from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.experiments.stamps import write_text

__all__ = ["LengthMix"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class LengthMix:
    """How many sentence pairs have which lengths, `</s>` included.

    Attributes:
        pairs: (source tokens, target tokens) -> sentence pairs.
        about: what they were counted in.
    """

    pairs: dict[Pair, int]
    about: str

    @classmethod
    def count(cls, pairs: Iterable[Pair], about: str) -> LengthMix:
        """Count pairs of lengths.

        Raises:
            BenchError: no pair, or one of no tokens.
        """
        counted = dict(sorted(Counter(pairs).items()))
        if not counted:
            raise BenchError(f"{about}: no sentences")
        if any(min(pair) < 1 for pair in counted):
            raise BenchError(f"{about}: a sentence of no tokens")
        return cls(counted, about)

    @classmethod
    def embedded(cls) -> LengthMix:
        """Return the mix of the embedded corpus as its recipe prepares it (2,000 subwords)."""
        return cls.read(Path(__file__).with_name("bible_es_en.lengths.json"))

    @classmethod
    def of_text(cls, source: Path, target: Path | None = None) -> LengthMix:
        """Count tokens between spaces, line by line; a lone text is its own target.

        Raises:
            BenchError: a file that cannot be read, or two of different lengths.
        """
        sides = [_line_lengths(path) for path in (source, target or source)]
        if len(sides[0]) != len(sides[1]):
            raise BenchError(
                f"{source} has {len(sides[0])} lines, {target} has {len(sides[1])}: "
                "a source and its translation have as many"
            )
        return cls.count(zip(*sides, strict=True), f"a text of {len(sides[0]):,} lines")

    @classmethod
    def of_data(cls, folder: Path, split: str = "train") -> LengthMix:
        """Count the tokens of a split of binarised data.

        Raises:
            BenchError: no such folder, or not two languages' data in it.
        """
        from fairseq.data import data_utils

        found = sorted(folder.glob(f"{split}.*-*.*.idx"))
        if len(found) != 2:
            raise BenchError(
                f"{folder}: no {split}.SRC-TGT.SRC.idx and .TGT.idx of fairseq-preprocess in it"
            )
        pair = found[0].name.split(".")[1]
        sizes = []
        for language in pair.split("-"):
            data = data_utils.load_indexed_dataset(str(folder / f"{split}.{pair}.{language}"))
            sizes.append([int(size) for size in data.sizes])
        return cls.count(zip(*sizes, strict=True), f"binarised data of {len(sizes[0]):,} pairs")

    @classmethod
    def read(cls, path: Path) -> LengthMix:
        """Read a mix that :meth:`write` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        pairs = {
            (int(source), int(target)): count
            for source, targets in content["pairs"].items()
            for target, count in targets.items()
        }
        return cls(pairs, content["about"])

    def write(self, path: Path) -> None:
        """Write the mix, a source length a line."""
        by_source: dict[int, dict[int, int]] = {}
        for (source, target), count in self.pairs.items():
            by_source.setdefault(source, {})[target] = count
        lines = ",\n".join(
            f'  "{source}": {json.dumps({str(t): c for t, c in targets.items()})}'
            for source, targets in by_source.items()
        )
        about = json.dumps(self.about, ensure_ascii=False)
        write_text(path, f'{{\n "about": {about},\n "pairs": {{\n{lines}\n }}\n}}\n')

    def sample(self, tokens: int, batches: int, seed: int) -> list[list[Pair]]:
        """Return batches as fairseq makes them of `--max-tokens`, drawn from all that there are.

        Sentences are sorted by source length, equal ones by target length, and cut so that
        sentences times the longest, source or target, are at most `tokens`.

        Raises:
            BenchError: a sentence that is longer than `tokens`.
        """
        from fairseq.data.data_utils import batch_by_size

        sizes = numpy.array([pair for pair, count in self.pairs.items() for _ in range(count)])
        longest = sizes.max(axis=1)
        if longest.max() > tokens:
            raise BenchError(
                f"{tokens} tokens a batch: {self.about} has a sentence of {longest.max()} tokens"
            )
        # as LanguagePairDataset.ordered_indices
        indices = numpy.random.default_rng(seed).permutation(len(sizes))
        indices = indices[numpy.argsort(sizes[indices, 1], kind="mergesort")]
        indices = indices[numpy.argsort(sizes[indices, 0], kind="mergesort")]
        made = batch_by_size(
            indices,
            num_tokens_fn=lambda index: int(longest[index]),
            num_tokens_vec=longest[indices],
            max_tokens=tokens,
            required_batch_size_multiple=1,
        )
        order = list(range(len(made)))
        random.Random(seed).shuffle(order)
        return [[(int(s), int(t)) for s, t in sizes[made[i]]] for i in order[:batches]]


def _line_lengths(path: Path) -> list[int]:
    """Return the lines' lengths in tokens, `</s>` included."""
    from fairseq_fixed.experiments.parallel_text import read_lines

    return [len(line.split()) + 1 for line in read_lines(path)]
