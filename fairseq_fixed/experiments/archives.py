"""A published corpus becomes two plain files a split: members found, markup taken out, joined.

Of tables, tab-separated, a language's column is taken.

Nothing is unpacked blindly: of a .tar or .zip only the members that were asked for are read, and
written under names of our own.
"""

from __future__ import annotations

import contextlib
import html
import logging
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_fixed.experiments.corpus import TextError, atomic_writer, write_lines
from fairseq_fixed.experiments.parallel_text import read_lines, split_columns

__all__ = [
    "Shelf",
    "expand",
    "files_named",
    "join_words",
    "sentences",
    "sources_in",
    "unpack",
]

logger = logging.getLogger(__name__)

_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError)


def _fill(name: str, language: str, languages: Sequence[str]) -> str:
    """A name with a language in the place of `LANG`, and the pair in that of the other words."""
    side = "src" if language == languages[0] else "ref"
    for word, value in (
        ("LANG", language),
        ("SIDE", side),
        ("SOURCE", languages[0]),
        ("TARGET", languages[-1]),
    ):
        name = name.replace(word, value)
    return name


def expand(names: Iterable[str], languages: Sequence[str]) -> list[str]:
    """Names, or addresses, filled in for each language; one that is the same for both once.

    >>> expand(["a.LANG", "b-SOURCETARGET-SIDE.LANG"], ["en", "de"])
    ['a.en', 'a.de', 'b-ende-src.en', 'b-ende-ref.de']
    """
    filled = [_fill(name, language, languages) for name in names for language in languages]
    return list(dict.fromkeys(filled))


def files_named(names: Iterable[str], languages: Sequence[str]) -> list[str]:
    """The files that a recipe's names stand for, without their columns."""
    return expand((split_columns(name)[0] for name in names), languages)


@dataclass(frozen=True)
class _Item:
    """A file, or a member of an archive."""

    file: Path
    member: str = ""  # empty: the file itself

    @property
    def name(self) -> str:
        return self.member or self.file.as_posix()

    def __str__(self) -> str:
        return f"{self.file}" + (f", {self.member}" if self.member else "")


class Shelf:
    """The files of a folder and of the archives in it, found by their names."""

    def __init__(self, folder: Path):
        """List the folder, its subfolders and its archives.

        Raises:
            TextError: it is no folder, or an archive is damaged.
        """
        self.folder = folder
        if not folder.is_dir():
            raise TextError(f"{folder} is not a folder. Name the one that holds the corpus's files")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        self._files = [_Item(path) for path in files]
        self._members = [
            _Item(path, member)
            for path in files
            if path.name.endswith(_ARCHIVES)
            for member in _list_archive(path)
        ]

    def find(self, name: str) -> list[_Item]:
        """The item of a name, or its numbered parts in order.

        Raises:
            TextError: there is none, a part is missing, or there are several.
        """
        for items in (self._files, self._members):
            for wanted in (name, f"{name}.gz"):
                found = [item for item in items if self._is(item, re.escape(wanted))]
                nearest = [item for item in found if item.file == self.folder / wanted]
                if len(nearest or found) > 1:
                    raise TextError(
                        f"{self.folder} has {name} more than once: {found[0]} and {found[1]}. "
                        "Remove one, or write the folder before its name in the recipe"
                    )
                if found:
                    return nearest or found
            parts = [item for item in items if self._is(item, re.escape(name) + r"\.\d{3}(\.gz)?")]
            if parts:
                return _in_order(name, parts)
        raise TextError(
            f"{self.folder} holds no {name}, neither as a file, plain or .gz, nor in parts "
            f"({name}.000, …), nor inside a .tar.gz or .zip"
        )

    def _is(self, item: _Item, pattern: str) -> bool:
        return re.search(rf"(^|/){pattern}$", item.name) is not None


def sources_in(folder: str, names: Iterable[str]) -> tuple[str, ...]:
    """The files and archives of a folder that hold these names; what is missing is left out."""
    found: list[str] = []
    with contextlib.suppress(TextError):
        shelf = Shelf(Path(folder))
        for name in names:
            with contextlib.suppress(TextError):
                found += [str(item.file) for item in shelf.find(name)]
    return tuple(dict.fromkeys(found))


def _in_order(name: str, parts: list[_Item]) -> list[_Item]:
    numbers: dict[int, _Item] = {}
    for item in parts:
        number = int(item.name.removesuffix(".gz").rpartition(".")[2])
        if number in numbers:
            raise TextError(f"part {number} of {name} is there twice: {numbers[number]} and {item}")
        numbers[number] = item
    first = min(numbers)
    for number in range(min(first, 1), max(numbers) + 1):
        if number not in numbers:
            raise TextError(f"{parts[0].file.parent} lacks a part of {name}: {name}.{number:03}")
    return [numbers[number] for number in sorted(numbers)]


def _list_archive(path: Path) -> list[str]:
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                return [info.filename for info in archive.infolist() if not info.is_dir()]
        with tarfile.open(path) as archive:
            return [info.name for info in archive if info.isfile()]
    except _DAMAGED as error:
        raise TextError(f"{path} is damaged or no archive ({error}). Fetch it again") from error


def _extract(item: _Item, target: Path) -> Path:
    """Copy an archive's member to a file of our own name."""
    try:
        with atomic_writer(target) as out:
            if item.file.suffix == ".zip":
                with zipfile.ZipFile(item.file) as zipped, zipped.open(item.member) as member:
                    shutil.copyfileobj(member, out, 1 << 20)
            else:
                with tarfile.open(item.file) as tar:
                    stream = tar.extractfile(item.member)
                    if stream is None:  # cannot be: only ordinary files were listed
                        raise TextError(f"{item} is no ordinary file")
                    shutil.copyfileobj(stream, out, 1 << 20)
    except _DAMAGED as error:
        raise TextError(f"{item} is damaged ({error}). Fetch it again") from error
    return target


_COLUMNLESS = 0.1  # of a table's lines: above it, its columns are not those that were named


def _column(path: Path, columns: Sequence[str], language: str) -> Iterator[str]:
    """One column of a table, line by line; empty where a line has not as many columns as named.

    Raises:
        TextError: the file cannot be read, or too many of its lines have other columns.
    """
    place = columns.index(language)
    odd = lines = 0
    for line in read_lines(path, strip=False):
        lines += 1
        cells = line.split("\t")
        if len(cells) == len(columns):
            yield cells[place].strip()
        else:
            odd += bool(line.strip())  # an empty line parts documents
            yield ""
    if odd > _COLUMNLESS * lines:
        raise TextError(
            f"{path}: {odd:,} of {lines:,} lines have not {len(columns)} columns between tabs "
            f"({', '.join(columns)}). Name its columns behind its name in the recipe, as in "
            "NAME#de,en"
        )
    if odd:
        logger.warning("%s: %d lines with more or fewer tabs left out", path, odd)


# IWSLT's training files: what is no text of the talk. Title and description are text.
_NOTE = re.compile(r"\s*<(url|keywords|speaker|talkid|reviewer|translator|doc|/doc|transcript|/)")
_TAG = re.compile(r"</?(title|description)>")
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>")


def sentences(path: Path, *, markup: bool = False) -> Iterator[str]:
    """The sentences of a file, out of its markup where it has one.

    Of an `.xml` or `.sgm` file these are its `<seg>` elements, entities resolved; of IWSLT's
    `train.tags` its lines, titles and descriptions too, but for those on the talk (`<url>`,
    `<keywords>`, …); of any other file all lines.

    Raises:
        TextError: the file cannot be read, or a `<seg>` is not closed on its line.
    """
    is_xml = ".xml" in path.name or ".sgm" in path.name
    is_tagged = is_xml or "train.tags" in path.name
    for number, line in enumerate(read_lines(path), 1):
        if not (markup and is_tagged):
            yield line
        elif is_xml:
            found = _SEGMENT.findall(line)
            if line.count("<seg") != len(found):
                raise TextError(f"{path}, line {number}: a <seg> is not closed on its line")
            yield from (html.unescape(text).strip() for text in found)
        elif not _NOTE.match(line):
            yield _TAG.sub("", line).strip()


def join_words(line: str) -> str:
    """Take away the spaces of a line whose script has none, but between Latin words or numbers.

    >>> join_words("彼 は New York に 2 年 い た 。")
    '彼はNew Yorkに2年いた。'
    """
    return re.sub(r"(?<![A-Za-z0-9]) +| +(?![A-Za-z0-9])", "", line)


def unpack(
    folder: Path,
    out: Path,
    *,
    languages: Sequence[str],
    splits: Mapping[str, Sequence[str]],
    markup: bool = False,
    join: Sequence[str] = (),
) -> None:
    """Write `SPLIT.LANGUAGE` for every split that has names, a sentence a line.

    Args:
        folder: the downloads, or one's own folder.
        out: folder to write; members of archives go to `members/` in it.
        languages: source and target.
        splits: names by split, as the recipe has them; several are put one behind the other.
        markup: as for :func:`sentences`.
        join: languages that get :func:`join_words`.

    Raises:
        TextError: a name is not found, cannot be read, or has not as many sentences in both
            languages.
    """
    shelf = Shelf(folder)
    counts: dict[str, dict[str, int]] = {}

    def lines(names: Sequence[str], language: str) -> Iterator[str]:
        for name in names:
            count = 0
            file, columns = split_columns(name)
            for item in shelf.find(_fill(file, language, languages)):
                path = item.file
                if item.member:
                    path = out / "members" / Path(item.member).name
                    _extract(item, path)
                logger.info("%s: %s", language, item)
                text = (
                    _column(path, columns, language) if columns else sentences(path, markup=markup)
                )
                for line in text:
                    count += 1
                    yield join_words(line) if language in join else line
            counts.setdefault(name, {})[language] = count

    for split, names in splits.items():
        if not names:
            continue
        for language in languages:
            write_lines(out / f"{split}.{language}", lines(names, language))
        # Of a single name the next stage can say where the two part ways.
        for name in names if len(names) > 1 else ():
            one, other = counts[name].values()
            if one != other:
                raise TextError(
                    f"{name} in {folder} has {one:,} sentences in {languages[0]} and {other:,} in "
                    f"{languages[1]}: sentence n of one must be the translation of n of the other"
                )
