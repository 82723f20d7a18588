"""Contrastive test sets: a source, its reference, and variants of the reference with one error.

Two layouts are read, plain or gzip.

- A table, `.tsv`: source, reference, wrong variant, and, where known, the error's type and its
  distance in words. A first line `source, reference, contrastive, type, distance` may name the
  columns, and then order them otherwise. Lines that follow each other with the same source and
  reference are variants of one sentence.
- `.json`, as LingEval97 (Sennrich 2017) and ContraPro (Müller et al. 2018) have it: a list of
  `{source, reference, errors: [{contrastive, type, distance}]}`. ContraPro's names are known, too:
  `src segment`, `ref segment`, and a sentence's `ante distance`, which holds for all its errors.
  Where a sentence names its pronouns, they (`it:er`) are the type of its errors: ContraPro has one
  type for all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.parallel_text import read_lines

__all__ = ["Item", "Wrong", "read_items"]

_COLUMNS = ("source", "reference", "contrastive", "type", "distance")
_NEEDED = 3
# Two of these in the first line, and it is taken for the columns' names.
_HEADINGS = {*_COLUMNS, "src", "ref", "hyp", "target", "translation", "variant"}


@dataclass(frozen=True)
class Wrong:
    """A wrong variant of a reference: its text, the error's type and distance, where known."""

    text: str
    type: str | None = None
    distance: int | None = None


@dataclass(frozen=True)
class Item:
    """A sentence: its source, its reference, and wrong variants of that."""

    source: str
    reference: str
    wrong: tuple[Wrong, ...]


def read_items(file: Path) -> list[Item]:
    """Return the sentences of a contrastive test set.

    Raises:
        ExperimentError: it is in neither layout, or empty.
        TextError: it cannot be read, or is not UTF-8.
    """
    suffixes = [suffix for suffix in file.suffixes if suffix != ".gz"]
    kind = suffixes[-1].lower() if suffixes else ""
    lines = list(read_lines(file, strip=False))
    if kind == ".json":
        items = list(_from_json(file, "\n".join(lines)))
    elif kind in (".tsv", ".txt"):
        items = _joined(_from_table(file, lines))
    else:
        raise ExperimentError(
            f"{file}: a contrastive test set is a table (.tsv) or LingEval97's .json; see "
            "fairseq-fixed contrast --help"
        )
    if not items:
        raise ExperimentError(f"{file} holds no pairs")
    return items


def _from_table(file: Path, lines: Sequence[str]) -> Iterator[tuple[str, str, Wrong]]:
    columns = list(_COLUMNS)
    first = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        heads = first and len(_HEADINGS.intersection(cell.lower() for cell in cells)) > 1
        first = False
        if heads:
            columns = [cell.lower() for cell in cells]
            missing = [name for name in _COLUMNS[:_NEEDED] if name not in columns]
            if missing:
                raise ExperimentError(
                    f"{file}: its first line names no {', '.join(missing)}; columns are "
                    f"{', '.join(_COLUMNS)}"
                )
            continue
        where = f"{file}, line {number}"
        if len(cells) < _NEEDED:
            raise ExperimentError(
                f"{where}: expected source, reference and a wrong variant with tabs between them, "
                f"got {len(cells)} column{'s' if len(cells) != 1 else ''}"
            )
        row = dict(zip(columns, cells, strict=False))
        yield _pair(
            where,
            row.get("source", ""),
            row.get("reference", ""),
            row.get("contrastive", ""),
            row.get("type") or None,
            row.get("distance") or None,
        )


def _pair(
    where: str, source: Any, reference: Any, wrong: Any, type: Any, distance: Any
) -> tuple[str, str, Wrong]:
    texts = {"source": source, "reference": reference, "contrastive": wrong}
    for name, text in texts.items():
        if not isinstance(text, str) or not text.strip():
            raise ExperimentError(f"{where}: {name} is empty")
    if reference.split() == wrong.split():
        raise ExperimentError(f"{where}: the wrong variant is the reference itself")
    if distance is not None:
        try:
            if isinstance(distance, bool) or float(distance) != int(float(distance)):
                raise ValueError
            distance = int(float(distance))
        except (TypeError, ValueError, OverflowError):
            raise ExperimentError(
                f"{where}: the distance {distance!r} is no whole number"
            ) from None
    return source, reference, Wrong(wrong, None if type is None else str(type), distance)


def _joined(pairs: Iterator[tuple[str, str, Wrong]]) -> list[Item]:
    items: list[Item] = []
    for source, reference, wrong in pairs:
        if items and (items[-1].source, items[-1].reference) == (source, reference):
            items[-1] = Item(source, reference, (*items[-1].wrong, wrong))
        else:
            items.append(Item(source, reference, (wrong,)))
    return items


def _from_json(file: Path, text: str) -> Iterator[Item]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ExperimentError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, list):
        raise ExperimentError(f"{file}: expected a list of sentences, as in LingEval97")
    for number, entry in enumerate(content, 1):
        where = f"{file}, sentence {number}"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("errors"), list):
            raise ExperimentError(f"{where}: expected source, reference and a list of errors")
        source = entry.get("source", entry.get("src segment"))
        reference = entry.get("reference", entry.get("ref segment"))
        pronouns = [entry.get("src pronoun"), entry.get("ref pronoun")]
        kind = ":".join(str(p).lower() for p in pronouns) if all(pronouns) else None
        wrong = []
        for variant in entry["errors"]:
            if not isinstance(variant, Mapping):
                raise ExperimentError(f"{where}: an error is no object with a `contrastive`")
            pair = _pair(
                where,
                source,
                reference,
                variant.get("contrastive"),
                kind or variant.get("type"),
                variant.get("distance", entry.get("ante distance")),
            )
            wrong.append(pair[2])
        if wrong:
            yield Item(str(source), str(reference), tuple(wrong))
