r"""Parallel raw text: read, checked and normalised, so that nothing later meets a surprise.

Files are UTF-8, plain or gzip (told by content, not by name), one sentence a line. What is repaired
is said once a file through `logging`: a byte order mark, CRLF line ends, and characters inside a
line that other tools take for line breaks (U+2028, form feed, a lone carriage return, …), which
become spaces. Lines are split at `\n` only. What cannot be repaired raises :class:`TextError`.

Empty lines: training and validation drop a pair with an empty side, and say how many. A test set
keeps every line, both sides empty included: hypothesis *n* belongs to line *n* of the user's file.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import logging
import math
import os
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.corpus import (
    Pair,
    TextError,
    TrainFilter,
    atomic_writer,
    draw_places,
    parse_limit,
    same_sentence,
    write_corpus,
    write_lines,
)

__all__ = [
    "Pair",
    "TextError",
    "deal",
    "find_shift",
    "load_parallel",
    "load_tsv",
    "prepare_custom",
    "read_lines",
    "split_columns",
    "write_parallel",
]

logger = logging.getLogger(__name__)

_LOOK = 1000  # so many pairs show whether files are what they are said to be

StrPath = str | os.PathLike[str]

# What str.splitlines, or a shell tool, takes for a line break inside a line; and NUL.
_BREAKS = dict.fromkeys(map(ord, "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00"), " ")
_BREAK_SET = frozenset(map(chr, _BREAKS))


def read_lines(path: StrPath, *, strip: bool = True) -> Iterator[str]:
    """Stream a text file's lines, normalised.

    Args:
        path: UTF-8, plain or gzip.
        strip: without white space at the lines' ends.

    Yields:
        Every line, the empty ones too.

    Raises:
        TextError: the file is missing, unreadable, empty, damaged or not UTF-8 (with the line).
    """
    path = Path(path)
    carriage_returns = separators = number = 0
    mark = False
    single = 0
    try:
        with path.open("rb") as probe:
            start = probe.read(4)
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise TextError(
                f"{path} is UTF-16, not UTF-8. Convert it: iconv -f UTF-16 -t UTF-8 {path}"
            )
        opener: Any = gzip.open if start[:2] == b"\x1f\x8b" else open
        with opener(path, "rb") as handle:
            for number, data in enumerate(handle, 1):
                try:
                    line = data.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise TextError(
                        f"{path}, line {number}, byte {error.start + 1}: not valid UTF-8 "
                        f"({error.object[error.start : error.start + 4]!r}). If the file is in "
                        f"another encoding, convert it, as in: iconv -f LATIN1 -t UTF-8 {path}"
                    ) from error
                if number == 1 and line.startswith("\ufeff"):
                    mark, line = True, line[1:]
                if line.endswith("\n"):
                    line = line[:-1]
                if line.endswith("\r"):
                    carriage_returns, line = carriage_returns + 1, line[:-1]
                if not _BREAK_SET.isdisjoint(line):
                    single = max(single, line.count("\r"))
                    separators, line = separators + 1, line.translate(_BREAKS)
                yield line.strip() if strip else line
    except FileNotFoundError as error:
        raise TextError(f"{path} does not exist. Check the path, or make the file") from error
    except IsADirectoryError as error:
        raise TextError(f"{path} is a folder: name the text file in it") from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise TextError(
            f"{path}, after line {number}: the gzip file is damaged or cut off ({error}). "
            "Copy or make it anew"
        ) from error
    except OSError as error:
        raise TextError(f"{path} cannot be read: {error.strerror or error}") from error
    if number == 0:
        raise TextError(f"{path} is empty: it must hold one sentence a line")
    if number == 1 and single > 1:
        raise TextError(
            f"{path} is one line with carriage returns in it: line ends as of old Macs. "
            f"Convert it: tr '\\r' '\\n' < {path}"
        )
    if mark:
        logger.warning("%s: byte order mark removed", path)
    if carriage_returns:
        logger.warning("%s: CRLF line ends normalised (%d lines)", path, carriage_returns)
    if separators:
        logger.warning(
            "%s: line-breaking characters inside %d lines replaced by spaces", path, separators
        )


def load_parallel(
    source_path: StrPath, target_path: StrPath, *, keep_empty: bool = False
) -> list[Pair]:
    """Read two files that are translations of each other, line by line.

    Args:
        source_path: source sentences.
        target_path: their translations, as many lines.
        keep_empty: keep pairs with an empty side (a test set); else they are dropped and counted.

    Returns:
        The pairs; `key` is the line's number in the files, from 1.

    Raises:
        TextError: a file cannot be read, the line counts differ (with both counts and where the
            lines look shifted), or there is no text on one side.
    """
    sources: list[str] = []
    targets: list[str] = []
    for source, target in itertools.zip_longest(read_lines(source_path), read_lines(target_path)):
        if source is not None:
            sources.append(source)
        if target is not None:
            targets.append(target)
    if len(sources) != len(targets):
        raise TextError(_mismatch(source_path, target_path, sources, targets))
    pairs = [
        Pair(source, target, str(number))
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), 1)
    ]
    _look_at(pairs, source_path, target_path)
    return _without_empty(pairs, f"{source_path} and {target_path}", keep_empty)


def _look_at(pairs: Sequence[Pair], source_path: StrPath, target_path: StrPath) -> None:
    """Check that the first pairs look like two languages.

    Raises:
        TextError: they look like two tables, or like one text twice.
    """
    some = [pair for pair in pairs[:_LOOK] if pair.source and pair.target]
    tables = sum("\t" in pair.source and "\t" in pair.target for pair in some)
    if tables > len(some) / 2:
        raise TextError(
            f"{source_path} and {target_path} look like two tables, with tabs in most lines of "
            "both: two files are taken for the two languages. Give one table; join several first: "
            "cat a.tsv b.tsv > all.tsv"
        )
    equal = sum(pair.source == pair.target for pair in some)
    # most: in corpora of corrections half of the pairs may be
    if len(some) > 1 and equal > 0.9 * len(some):
        raise TextError(
            f"{source_path} and {target_path} hold the same sentences: {equal} of the first "
            f"{len(some)} pairs are equal. Give the source language first, then the target language"
        )


_COLUMNS = re.compile(r"(?P<name>.+)#(?P<columns>\w+(,\w+)+)")


def split_columns(name: str) -> tuple[str, tuple[str, ...]]:
    """A name, and the columns of the table that it is; none for a file of one language.

    >>> split_columns("europarl-v9.de-en.tsv#de,en")
    ('europarl-v9.de-en.tsv', ('de', 'en'))
    """
    match = _COLUMNS.fullmatch(name)
    return (match["name"], tuple(match["columns"].split(","))) if match else (name, ())


def load_tsv(
    path: StrPath, languages: Sequence[str] = (), *, keep_empty: bool = False
) -> list[Pair]:
    """Read a table of sentence pairs.

    Args:
        path: UTF-8, plain or gzip: `source<TAB>target` lines. A table of more columns, or of
            another order, has their names behind its own, as in `all.tsv#key,en,fr,licence`: those
            of the languages, `key` for the pairs' keys, any for the rest.
        languages: source and target: where columns have names, and to tell a line of names.
        keep_empty: as for :func:`load_parallel`.

    Returns:
        The pairs; without a key column, `key` is the line's number.

    Raises:
        TextError: the file cannot be read, or a line has another number of columns.
    """
    return _without_empty(list(_tsv_pairs(path, languages)), str(path), keep_empty)


def _tsv_pairs(path: StrPath, languages: Sequence[str]) -> Iterator[Pair]:
    name, columns = split_columns(os.fspath(path))
    if columns and not set(languages) <= set(columns):
        raise TextError(f"{path} has no column for each of {' and '.join(languages)}")
    source, target = (columns.index(language) for language in languages) if columns else (0, 1)
    key = columns.index("key") if "key" in columns else None
    wanted = len(columns) or 2
    for number, line in enumerate(read_lines(name, strip=False), 1):
        cells = [cell.strip() for cell in line.split("\t")]
        if cells == [""]:
            yield Pair("", "", str(number))
            continue
        if len(cells) != wanted:
            raise TextError(
                f"{name}, line {number}: {len(cells)} column{'s'[: len(cells) != 1]} where "
                f"{wanted} are expected ({', '.join(columns) or 'source, target'}): {line[:60]!r}. "
                "Remove tabs inside sentences; if all lines have more columns, name them behind "
                "the file's name, as in all.tsv#key,en,fr"
            )
        pair = Pair(cells[source], cells[target], str(number) if key is None else cells[key])
        if number == 1 and [pair.source.lower(), pair.target.lower()] == [
            language.lower() for language in languages
        ]:
            logger.warning("%s: line 1 names the columns; it is no pair", name)
            continue
        yield pair


def _stream(paths: Sequence[StrPath], languages: Sequence[str]) -> Iterator[Pair]:
    """The pairs of two files, or of a TSV, without those with an empty side; none is kept.

    Raises:
        TextError: as :func:`load_parallel` and :func:`load_tsv`, but that a side without any text
            leaves no pairs.
    """
    empty = 0
    pairs = _tsv_pairs(paths[0], languages) if len(paths) == 1 else _parallel_pairs(*paths)
    for pair in pairs:
        if pair.source and pair.target:
            yield pair
        else:
            empty += 1
    if empty:
        names = " and ".join(map(str, paths))
        logger.warning("%s: %d pairs with an empty side dropped", names, empty)


def _parallel_pairs(source_path: StrPath, target_path: StrPath) -> Iterator[Pair]:
    pairs = _line_by_line(source_path, target_path)
    first = list(itertools.islice(pairs, _LOOK))
    _look_at(first, source_path, target_path)
    yield from first
    yield from pairs


def _line_by_line(source_path: StrPath, target_path: StrPath) -> Iterator[Pair]:
    both = itertools.zip_longest(read_lines(source_path), read_lines(target_path))
    for number, (source, target) in enumerate(both, 1):
        if source is None or target is None:
            load_parallel(source_path, target_path)  # says where the two part ways
        yield Pair(source, target, str(number))


def _without_empty(pairs: list[Pair], name: str, keep_empty: bool) -> list[Pair]:
    for side in ("source", "target"):
        if not any(getattr(pair, side) for pair in pairs):
            raise TextError(f"{name}: every {side} sentence is empty. Check the files")
    full = [pair for pair in pairs if pair.source and pair.target]
    empty = len(pairs) - len(full)
    if not empty:
        return pairs
    if keep_empty:
        logger.warning("%s: %d pairs have an empty side; kept, line for line", name, empty)
        return pairs
    logger.warning("%s: %d pairs with an empty side dropped", name, empty)
    return full


def _mismatch(
    source_path: StrPath, target_path: StrPath, sources: list[str], targets: list[str]
) -> str:
    shorter, longer = sorted((len(sources), len(targets)))
    message = (
        f"{source_path} has {len(sources):,} line{'s'[: len(sources) != 1]} and {target_path} "
        f"{len(targets):,}: line n of one must be the translation of line n of the other. "
    )
    where = find_shift([len(line) for line in sources], [len(line) for line in targets])
    if where >= shorter:
        message += (
            f"The lengths agree to the end of the shorter file: lines {shorter + 1:,} to "
            f"{longer:,} of the longer one have no partner. Remove or translate them"
        )
        return message
    line = where + 1

    def shown(lines: list[str]) -> str:
        text = lines[where] if where < len(lines) else ""
        return repr(text[:70] + ("…" if len(text) > 70 else ""))

    return message + (
        f"The sentences' lengths look shifted from about line {line:,} on: {shown(sources)} beside "
        f"{shown(targets)}. Look there for a line that is missing on one side, or broken in two"
    )


def find_shift(source_lengths: Sequence[int], target_lengths: Sequence[int]) -> int:
    """Where two files with different line counts first run out of step, judged by line lengths.

    Under the model of Gale and Church (1993, section 3.2) the difference of a pair's lengths in
    characters is normal, its variance 6.8 a character. The log-likelihood of "shifted by k lines"
    against "in step" is summed line by line and restarted when it falls below zero (Page's
    cumulative sum test); one line counts for at most 4, so that single free translations raise no
    alarm. Where there is none, the best single place for the whole difference is returned.

    Args:
        source_lengths: characters of each source line.
        target_lengths: characters of each target line; another number of lines.

    Returns:
        The first line that looks shifted, from 0; the length of the shorter file if only its end
        is missing.
    """
    longer, shorter = list(source_lengths), list(target_lengths)
    if len(longer) < len(shorter):
        longer, shorter = shorter, longer
    difference = len(longer) - len(shorter)
    if not difference or not shorter:
        return len(shorter)
    # How much longer one language is, from medians: in step or not, they are the same.
    scale = max(1.0, _median(shorter)) / max(1.0, _median(longer))

    def cost(long: int, short: int) -> float:
        expected = long * scale
        gap = short - expected
        return min(gap * gap / (6.8 * (expected + short) + 2.0), 4.0)

    in_step = [cost(long, short) for long, short in zip(longer, shorter, strict=False)]
    alarm = 10.0 + math.log(len(shorter) + 1)
    found: tuple[int, int] | None = None  # (line of the alarm, first shifted line)
    for shift in range(1, min(difference, 5) + 1):
        total, start = 0.0, 0
        for i, short in enumerate(shorter):
            if found and i > found[0]:
                break
            total += in_step[i] - cost(longer[i + shift], short)
            if total <= 0:
                total, start = 0.0, i + 1
            elif total > alarm:
                if found is None or (i, start) < found:
                    found = (i, start)
                break
    if found:
        return found[1]
    # Too little text behind the place for an alarm: the most likely place for all of it at once,
    # unless hardly more likely than lines missing at the end.
    after = sum(cost(longer[i + difference], short) for i, short in enumerate(shorter))
    before, best, where = 0.0, after, 0
    for i, short in enumerate(shorter):
        before += in_step[i]
        after -= cost(longer[i + difference], short)
        if before + after <= best:
            best, where = before + after, i + 1
    return where if before - best > 2.0 else len(shorter)


def _median(values: Sequence[int]) -> float:
    return sorted(values)[len(values) // 2]


def write_parallel(source_path: StrPath, target_path: StrPath, pairs: Iterable[Pair]) -> None:
    """Write pairs as two files, each atomically.

    Raises:
        TextError: a sentence holds a line break, or a file cannot be written.
    """
    pairs = list(pairs)
    write_lines(source_path, (pair.source for pair in pairs))
    write_lines(target_path, (pair.target for pair in pairs))


def deal(path: StrPath, parts: Sequence[StrPath]) -> None:
    """Deal a file's lines out to several files, one after the other; none is left empty.

    Raises:
        TextError: fewer lines than files, or a file cannot be read or written.
    """
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(atomic_writer(part)) for part in parts]
        count = 0
        for file, line in zip(itertools.cycle(files), read_lines(path), strict=False):
            file.write(line.encode("utf-8") + b"\n")
            count += 1
        if count < len(parts):
            raise TextError(f"{path} has {count} lines, too few for {len(parts)} parts")


def prepare_custom(
    out: StrPath,
    *,
    source: str,
    target: str,
    train: Sequence[StrPath],
    valid: Sequence[StrPath] = (),
    test: Sequence[StrPath] = (),
    held_out: int = 1000,
    max_words: int | None = None,
    max_ratio: float | None = None,
    limit: str | int | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    """Prepare one's own parallel text; writes what `data/sword.py` writes, but for `corpus.tsv`.

    Args:
        out: folder for `train.SOURCE` … `statistics.json`.
        source: language code of the source, the files' extension.
        target: the same of the target.
        train: `[source file, target file]`, or `[TSV file]` (of :func:`load_tsv`).
        valid: the same; empty: `held_out` pairs are drawn from `train`.
        test: the same. A given test set keeps all its lines, in order.
        held_out: pairs drawn for valid, and for test, where they are not given.
        max_words: longest training sentence, in words on either side; None: any.
        max_ratio: drop training pairs whose lengths differ by more than this factor; None: none.
        limit: training pairs kept (`800`, `5k`), drawn by `seed`; None: all.
        seed: of what is drawn. The same arguments give the same files.

    Returns:
        What `statistics.json` says.

    Raises:
        TextError: what was wrong, where, and what to do.
    """
    parse_limit(limit)
    if source == target:
        raise TextError(f"source and target language are both {source!r}: their files would clash")
    languages = (source, target)
    chosen: dict[str, list[Pair]] = {}
    if valid:
        chosen["valid"] = _load("valid", valid, languages)
    if test:
        chosen["test"] = _load("test", test, languages, keep_empty=True)
    wanted = [split for split in ("test", "valid") if split not in chosen]
    candidates: list[Pair] = []
    if wanted:
        candidates = _load("train", train, languages)
        chosen.update(_draw_held_out(candidates, wanted, held_out, seed, chosen))
    else:
        _check_files("train", train)
    held = [*chosen["valid"], *chosen["test"]]
    drawn = {id(pair) for pair in held}

    def allowed() -> tuple[TrainFilter, Iterator[Pair]]:
        """The pairs that may train; a corpus with splits of its own is not kept in memory."""
        keep = TrainFilter(held, max_words=max_words, max_ratio=max_ratio)
        pairs = (
            (p for p in candidates if id(p) not in drawn) if wanted else _stream(train, languages)
        )
        return keep, keep(pairs)

    keep, pairs = allowed()
    total = 0
    places: list[int] | None = None
    if parse_limit(limit) is not None:
        total = sum(1 for _ in pairs)
        places = draw_places(total, limit, seed)
        keep, pairs = allowed()
    kept = _at(pairs, places)
    first = next(kept, None)
    if first is None:
        raise TextError(
            f"no pair of {' and '.join(map(str, train))} is left to train on; dropped: "
            f"{keep.dropped}. Raise max_words or max_ratio, or give other valid and test files"
        )

    def statistics() -> dict[str, Any]:
        over = 0 if places is None else total - len(places)
        return {
            "files": {
                split: [Path(path).name for path in paths]
                for split, paths in (("train", train), ("valid", valid), ("test", test))
            },
            "seed": seed,
            "max_words": max_words,
            "max_ratio": max_ratio,
            "limit": parse_limit(limit),
            "held_out": held_out if wanted else None,
            "dropped_from_train": {**keep.dropped, "over the limit": over},
        }

    whole = write_corpus(
        out,
        {
            "train": itertools.chain([first], kept),
            "valid": chosen["valid"],
            "test": chosen["test"],
        },
        source=source,
        target=target,
        statistics=statistics,
    )
    dropped = whole["dropped_from_train"]
    logger.info(
        "%d of %d pairs train; dropped: %s",
        whole["splits"]["train"]["pairs"],
        whole["splits"]["train"]["pairs"] + sum(dropped.values()),
        ", ".join(f"{reason} {count}" for reason, count in dropped.items() if count) or "none",
    )
    return whole


def _at(pairs: Iterable[Pair], places: Sequence[int] | None) -> Iterator[Pair]:
    """The pairs at these places, which ascend; None: all of them, to the last."""
    if places is None:
        yield from pairs
        return
    wanted = iter(places)
    next_place = next(wanted, None)
    for place, pair in enumerate(pairs):
        if place == next_place:
            yield pair
            next_place = next(wanted, None)


def _check_files(split: str, paths: Sequence[StrPath]) -> None:
    if isinstance(paths, (str, os.PathLike)) or len(paths) not in (1, 2):
        raise TextError(f"{split} is {paths!r}: give [source file, target file], or one [TSV file]")


def _load(
    split: str, paths: Sequence[StrPath], languages: Sequence[str], *, keep_empty: bool = False
) -> list[Pair]:
    _check_files(split, paths)
    if len(paths) == 1:
        return load_tsv(paths[0], languages, keep_empty=keep_empty)
    return load_parallel(paths[0], paths[1], keep_empty=keep_empty)


def _draw_held_out(
    pairs: Sequence[Pair],
    splits: Sequence[str],
    count: int,
    seed: int,
    given: dict[str, list[Pair]],
) -> dict[str, list[Pair]]:
    """`count` pairs for each of `splits`; no sentence twice among them, or in a given split."""
    if count < 1:
        raise TextError(
            f"held_out is {count}: it must be at least 1 where no valid or test is given"
        )
    sources = {same_sentence(pair.source) for split in given.values() for pair in split}
    targets = {same_sentence(pair.target) for split in given.values() for pair in split}
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)
    picked: list[int] = []
    wanted = count * len(splits)
    for i in order:
        one, other = same_sentence(pairs[i].source), same_sentence(pairs[i].target)
        if one in sources or other in targets:
            continue
        sources.add(one)
        targets.add(other)
        picked.append(i)
        if len(picked) == wanted:
            break
    most = len(pairs) // (2 * len(splits))
    if len(picked) < wanted or count > most:
        distinct = min(most, len(picked) // len(splits))
        few = f" ({len(picked):,} have sentences of their own)" if len(picked) < wanted else ""
        advice = f"Set held_out to at most {distinct:,}, or give" if distinct else "Give"
        raise TextError(
            f"train has {len(pairs):,} pairs, too few to hold out {count:,} each for "
            f"{' and '.join(splits)}{few}. {advice} own files"
        )
    return {
        split: [pairs[i] for i in sorted(picked[n * count : (n + 1) * count])]
        for n, split in enumerate(splits)
    }
