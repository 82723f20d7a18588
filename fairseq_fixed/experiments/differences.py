"""Where a translation differs from the reference, word by word."""

from __future__ import annotations

import difflib
import html
import re
import unicodedata
from functools import cache

from fairseq_fixed.experiments.corpus import word_pattern

__all__ = ["mark", "mark_markdown", "plain_markdown"]

_CHARACTERS = re.compile(r"\s+|\S")
# pieces of a text that are compared: a translation that repeats a word a thousand times would take
# minutes
_LONGEST = 400
_SPECIAL = re.compile(r"([\\`*_\[\]~#])")


@cache
def _words() -> re.Pattern[str]:
    return re.compile(rf"\s+|{word_pattern().pattern}|.", re.DOTALL)


def _compared(piece: str) -> str:
    """Return a piece without what is no difference: capitals, and how a letter is coded."""
    return unicodedata.normalize("NFC", piece.casefold())


def mark(text: str, reference: str, *, characters: bool = False) -> list[tuple[str, bool]]:
    """Return a text in pieces, each with whether it differs from the reference.

    Words (capital letters aside) and punctuation marks are matched in their order, as `diff` does
    with lines: a word of the reference that stands elsewhere differs, too. Behind the first 400
    words of a text nothing is compared, and nothing marked.

    Args:
        text: a translation.
        reference: what it is compared with.
        characters: compare characters, for languages without spaces.

    Returns:
        Pieces that together are the text; no two neighbours are of one kind.
    """
    pattern = _CHARACTERS if characters else _words()
    pieces = pattern.findall(text)
    places = [i for i, piece in enumerate(pieces) if not piece.isspace()]
    ours = [_compared(pieces[i]) for i in places[:_LONGEST]]
    theirs = [_compared(p) for p in pattern.findall(reference) if not p.isspace()][:_LONGEST]
    differs = [False] * len(pieces)
    for kind, _, _, start, end in difflib.SequenceMatcher(
        None, theirs, ours, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            for i in range(start, end):
                differs[places[i]] = True
    for i in range(1, len(pieces) - 1):  # a space between two that differ
        if pieces[i].isspace():
            differs[i] = differs[i - 1] and differs[i + 1]
    marked: list[tuple[str, bool]] = []
    for piece, flag in zip(pieces, differs, strict=True):
        if marked and marked[-1][1] == flag:
            marked[-1] = (marked[-1][0] + piece, flag)
        else:
            marked.append((piece, flag))
    return marked


def plain_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", html.escape(text, quote=False))


def mark_markdown(text: str, reference: str, *, characters: bool = False) -> str:
    """Return a text as Markdown, bold where it differs from the reference.

    `<b>` rather than `**`, which opens nothing between a letter and a punctuation mark.
    """
    return "".join(
        f"<b>{plain_markdown(piece)}</b>" if differs else plain_markdown(piece)
        for piece, differs in mark(text, reference, characters=characters)
    )
