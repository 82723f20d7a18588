"""From aligned sentence pairs to a prepared corpus: filters, limit, statistics, files.

A prepared corpus is a folder with `train.SRC train.TGT valid.SRC valid.TGT test.SRC test.TGT`, one
sentence a line, and `statistics.json`, which is written last: where it is, the corpus is complete.

Standard library only, and no import from this package: `data/sword.py` loads this file by its path
in a clone where neither torch nor fairseq is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

__all__ = [
    "SPLITS",
    "Pair",
    "TextError",
    "TrainFilter",
    "atomic_writer",
    "draw",
    "draw_places",
    "format_statistics",
    "parse_limit",
    "same_sentence",
    "word_pattern",
    "write_corpus",
    "write_lines",
]

SPLITS = ("train", "valid", "test")


class TextError(ValueError):
    """Text that cannot be read, aligned, prepared or written: what, where, and what to do."""


@dataclass(frozen=True)
class Pair:
    """One aligned sentence pair; `key` names its place in the corpus (a verse, a line)."""

    source: str
    target: str
    key: str = ""


@contextlib.contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a binary file that appears under its name only when it is complete.

    The bytes go to `.NAME.part` beside it, which is flushed to the disk and renamed at the end, and
    removed on an error. A killed run leaves at most that part file, which the next run overwrites.

    Raises:
        TextError: the folder cannot be made or written to, or the disk is full.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = part.open("wb")
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        with handle:
            yield handle
            try:
                handle.flush()
                os.fsync(handle.fileno())
            except OSError as error:
                raise _cannot_write(path, error) from error
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        # Only what concerns this very file is our message; a reader's error passes unchanged.
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            raise _cannot_write(path, error) from error
        raise


def _cannot_write(path: Path, error: OSError) -> TextError:
    return TextError(
        f"cannot write {path}: {error.strerror or error}. Free space there, make the folder "
        "writable, or choose another output folder; nothing half-written was left behind"
    )


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    r"""Write lines as UTF-8, each ended by `\n`, atomically.

    Raises:
        TextError: a line holds a line break (the file would shift), or the file cannot be written.
    """
    with atomic_writer(path) as handle:
        for number, line in enumerate(lines, 1):
            _write_line(handle, line, path, number)


def _write_line(handle: IO[bytes], line: str, path: str | os.PathLike[str], number: int) -> None:
    if "\n" in line or "\r" in line:
        raise TextError(
            f"{path}, line {number}: the sentence holds a line break ({line[:60]!r}); "
            "replace it by a space first"
        )
    handle.write(line.encode("utf-8") + b"\n")


def parse_limit(limit: str | int | None) -> int | None:
    """The number of pairs that `800`, `"5k"`, `"2.5k"` or `"1m"` names; None or `"all"`: no limit.

    Raises:
        TextError: neither a positive number nor one followed by k or m.
    """
    if limit is None or (isinstance(limit, str) and limit.strip().lower() in ("", "all", "none")):
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmM]?)\s*", str(limit))
    number = 0
    if match:
        scale = {"": 1, "k": 1_000, "m": 1_000_000}[match[2].lower()]
        exact = float(match[1]) * scale
        number = int(exact) if exact == int(exact) else 0
    if number <= 0:
        raise TextError(
            f"limit {limit!r} is not a number of sentence pairs: give a positive whole number, "
            "such as 800, or 5k, 10k, 1m"
        )
    return number


@cache
def word_pattern() -> re.Pattern[str]:
    """Letters, digits, and the marks that stand on them, which a regular expression's w lacks."""
    marks = (chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c))[0] == "M")
    return re.compile(f"[\\w{''.join(marks)}]+")


def same_sentence(sentence: str) -> bytes:
    """A short key, equal for sentences that differ in case, spacing or punctuation only.

    However a letter is coded (é as one character or two, full width or half: Unicode's NFKC), it is
    the same; marks that stand on letters, as the vowels of Devanagari, are no punctuation.
    """
    if sentence.isascii():
        words = re.findall(r"\w+", sentence.lower())
    else:
        words = word_pattern().findall(unicodedata.normalize("NFKC", sentence).casefold())
    plain = " ".join(words) or sentence
    return hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=12).digest()


@dataclass
class TrainFilter:
    """Decides which pairs may train; counts what it drops, by reason.

    Attributes:
        held_out: pairs of valid and test. A training pair is dropped if its source *or* its target
            is one of theirs (compared without case, spacing and punctuation).
        max_words: longest training sentence, in whitespace-separated words, on either side.
        max_ratio: a pair is dropped if one side has more than this many times the other side's
            characters (both counted with 10 added, so that short sentences may differ freely).
        dropped: pairs dropped so far, by reason, in the order of the checks.
    """

    held_out: Iterable[Pair] = ()
    max_words: int | None = None
    max_ratio: float | None = None
    dropped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Index the held-out sentences."""
        if self.max_words is not None and self.max_words < 1:
            raise TextError(f"max_words is {self.max_words}: it must be at least 1, or null")
        if self.max_ratio is not None and self.max_ratio < 1:
            raise TextError(f"max_ratio is {self.max_ratio}: it must be at least 1, or null")
        self._sources: set[bytes] = set()
        self._targets: set[bytes] = set()
        for pair in self.held_out:
            self._sources.add(same_sentence(pair.source))
            self._targets.add(same_sentence(pair.target))
        # Case and punctuation are something to learn: only exact repetitions are duplicates.
        self._seen: set[bytes] = set()
        self.dropped = dict.fromkeys(
            ("empty", "too long", "length ratio", "held out", "duplicate"), 0
        )

    def __call__(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """The pairs that may train, in their order."""
        for pair in pairs:
            reason = self._reason(pair)
            if reason:
                self.dropped[reason] += 1
            else:
                yield pair

    def _reason(self, pair: Pair) -> str | None:
        source, target = pair.source, pair.target
        if not source.strip() or not target.strip():
            return "empty"
        if self.max_words is not None and (
            len(source.split()) > self.max_words or len(target.split()) > self.max_words
        ):
            return "too long"
        if self.max_ratio is not None:
            short, long = sorted((len(source) + 10, len(target) + 10))
            if long > self.max_ratio * short:
                return "length ratio"
        if same_sentence(source) in self._sources or same_sentence(target) in self._targets:
            return "held out"
        both = hashlib.blake2b(
            f"{source}\n{target}".encode("utf-8", "surrogatepass"), digest_size=12
        ).digest()
        if both in self._seen:
            return "duplicate"
        self._seen.add(both)
        return None


def draw_places(total: int, limit: str | int | None, seed: int) -> list[int] | None:
    """The places of the first `limit` of `total` in a seeded shuffle, in order; None: all.

    The 5k of one seed are part of its 10k: learning curves grow one corpus.
    """
    count = parse_limit(limit)
    if count is None or count >= total:
        return None
    order = list(range(total))
    random.Random(seed).shuffle(order)
    return sorted(order[:count])


def draw(pairs: Sequence[Pair], limit: str | int | None, seed: int) -> list[Pair]:
    """The first `limit` pairs of a seeded shuffle, put back into corpus order."""
    places = draw_places(len(pairs), limit, seed)
    return list(pairs) if places is None else [pairs[i] for i in places]


class _Side:
    """Lengths and word types of one side of a split, added up line by line."""

    def __init__(self) -> None:
        self.words = self.longest = self.lines = 0
        self.types: set[str] = set()

    def add(self, line: str) -> None:
        length = len(line.split())
        self.lines += 1
        self.words += length
        self.longest = max(self.longest, length)
        self.types.update(re.findall(r"\w+", line.lower()))

    def figures(self, known: set[str]) -> dict[str, Any]:
        return {
            "words": self.words,
            "mean_words": round(self.words / max(1, self.lines), 2),
            "max_words": self.longest,
            "types": len(self.types),
            "oov_type_rate": round(len(self.types - known) / max(1, len(self.types)), 4),
        }


def _write_split(
    folder: Path, split: str, pairs: Iterable[Pair], languages: Sequence[str], keys: bool
) -> tuple[_Side, _Side]:
    """Write a split's files side by side, so that its pairs may come from a generator."""
    names = [f"{split}.{language}" for language in languages] + [f"{split}.keys"] * keys
    sides = _Side(), _Side()
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(atomic_writer(folder / name)) for name in names]
        for number, pair in enumerate(pairs, 1):
            for side, line in zip(sides, (pair.source, pair.target), strict=True):
                side.add(line)
            for file, name, line in zip(
                files, names, (pair.source, pair.target, pair.key), strict=False
            ):
                _write_line(file, line, folder / name, number)
        if not sides[0].lines:
            raise TextError(
                f"no sentence pair is left for {split} in {folder}: give more text, or raise "
                "max_words and limit"
            )
    return sides


def write_corpus(
    folder: str | os.PathLike[str],
    splits: Mapping[str, Iterable[Pair]],
    *,
    source: str,
    target: str,
    statistics: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    keys: bool = True,
) -> dict[str, Any]:
    """Write a prepared corpus: two files a split, `SPLIT.keys`, and `statistics.json` last.

    The statistics get, as `splits`, each split's pairs and, of each side, words, mean and longest
    length in whitespace-separated words, word types (runs of letters or digits in lower case) and
    `oov_type_rate`, the share of the types that training never shows (0 for train).

    Args:
        folder: made if it is missing.
        splits: the pairs of `train`, `valid` and `test`; each is gone through once.
        source: language code, the source files' extension.
        target: the same of the target.
        statistics: what the builder knows; a function is called when all pairs are written.
        keys: also write every pair's key, line by line.

    Returns:
        The statistics as written.

    Raises:
        TextError: a split is empty, or a file cannot be written.
    """
    folder = Path(folder)
    # A folder whose files are being replaced is not complete.
    with contextlib.suppress(OSError):
        (folder / "statistics.json").unlink()
    known: tuple[set[str], set[str]] | None = None
    figures: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        sides = _write_split(folder, split, splits[split], (source, target), keys)
        known = known or (sides[0].types, sides[1].types)
        figures[split] = {
            "pairs": sides[0].lines,
            source: sides[0].figures(known[0]),
            target: sides[1].figures(known[1]),
        }
    whole = {
        "source": source,
        "target": target,
        **(statistics() if callable(statistics) else statistics),
        "splits": figures,
    }
    with atomic_writer(folder / "statistics.json") as handle:
        handle.write((json.dumps(whole, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))
    return whole


def format_statistics(statistics: Mapping[str, Any]) -> str:
    """The figures of the splits, and what was dropped from training, as a table for people."""
    languages = (statistics["source"], statistics["target"])
    header = ["split", "pairs"]
    for language in languages:
        header += [f"words {language}", f"mean {language}", f"OOV types {language}"]
    rows = [header]
    for split in SPLITS:
        entry = statistics["splits"][split]
        row = [split, f"{entry['pairs']:,}"]
        for language in languages:
            side = entry[language]
            unseen = "" if split == "train" else f"{side['oov_type_rate']:.1%}"
            row += [f"{side['words']:,}", f"{side['mean_words']:.1f}", unseen]
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    dropped = statistics.get("dropped_from_train", {})
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items() if count)
    lines.append(f"dropped from train: {reasons or 'none'}")
    return "\n".join(lines)
