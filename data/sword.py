#!/usr/bin/env python3
"""Build the embedded corpus: two public-domain Bibles, Spanish and English, verse by verse.

    python data/sword.py --out corpora/es-en
    python data/sword.py --out corpora/en-es --pair en-es --limit 10k

The Reina-Valera of 1909 (SWORD module spaRV1909eb) and the World English Bible (engWEB2015eb) are
packaged by Debian and Ubuntu as `sword-text-sparv` and `sword-text-web`. They are looked for in
`--sword-path`, else among the installed modules, else fetched with `apt-get download` and unpacked
with `dpkg-deb -x` into `--cache`: that needs no root and installs nothing.

Output, in `--out`: `corpus.tsv` (verse key, source, target; all aligned verses), `train.es train.en
valid.es valid.en test.es test.en`, `train.keys valid.keys test.keys`, `statistics.json` (last).

**Alignment.** Verses are joined on the (book, chapter, verse) keys that both modules have. Some
chapters of the Spanish module divide their verses otherwise (Numbers 13, 1 Samuel 24, Job 39,
Hosea 12, Jonah 2 …), and whole runs are shifted by one to three verses. A bilingual lexicon,
counted from the joined verses themselves, finds such chapters: their verses share fewer translated
words than verses a few places off. They are aligned anew by dynamic programming over the same
lexicon. A pair's key is that of the English verse. (Strong's numbers, which both modules carry,
are no help: in many English chapters, most Psalms among them, the numbers are those of the
neighbouring verse, though the text is right.)

**Split**, by whole books, both testaments in each, none with a parallel book in training:

- test: Ruth, Ecclesiastes, Jonah; Galatians, Philippians, James. A tale, wisdom, a prophet's tale,
  three letters. No chapter of theirs is told again elsewhere.
- valid: Esther, Lamentations; 1 and 2 Thessalonians, 1, 2 and 3 John. Letters alike are held out
  together.

Not fit to be held out: the synoptic gospels (one another); Samuel, Kings and Chronicles (one
another; 2 Samuel 22 is Psalm 18, 2 Kings 18-20 Isaiah 36-39, 2 Kings 25 Jeremiah 52); Ezra and
Nehemiah (Ezra 2, Nehemiah 7; 2 Chronicles 36); Exodus to Deuteronomy (laws given twice), Joshua and
Judges (Judges 1), Genesis (1 Chronicles 1); Psalms (14 and 53, 1 Chronicles 16); Proverbs (sayings
given twice); Isaiah 2 and Micah 4; Obadiah and Jeremiah 49; Joel, Acts 2; Jude and 2 Peter;
Ephesians and Colossians; Timothy and Titus; Romans, Hebrews and 1 Peter (long quotations);
Revelation (Daniel, Ezekiel). What is left, single verses quoted or formulas of greeting, is dropped
from training: no sentence of valid or test is a training sentence, on either side.
In figures, of the English word sequences of length five in a book, the share also found in books
not held out with it: Ecclesiastes 3%, James 3%, Philippians 4%, Galatians 5%, Ruth and Jonah 8%;
Matthew 21%, Mark 24%, 1 Kings 25%, 2 Chronicles 29%.

Needs the standard library and `pysword`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import html
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import fcntl
except ImportError:  # not a POSIX system, which has no apt either
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from fairseq_fixed.experiments import corpus
else:

    def _load_corpus():
        """The module `corpus`, by its path unless the package (which needs torch) is in use."""
        if "fairseq_fixed.experiments" in sys.modules:
            return importlib.import_module("fairseq_fixed.experiments.corpus")
        here = Path(__file__).resolve().parent
        for folder in (here.parent / "fairseq_fixed", here.parent):  # a clone; inside a wheel
            path = folder / "experiments" / "corpus.py"
            if path.is_file():
                spec = importlib.util.spec_from_file_location("_fairseq_fixed_corpus", path)
                module = importlib.util.module_from_spec(spec)
                sys.modules[spec.name] = module
                spec.loader.exec_module(module)
                return module
        raise ImportError(f"experiments/corpus.py is not beside {here}: the clone is incomplete")

    corpus = _load_corpus()

Pair = corpus.Pair
TextError = corpus.TextError
Key = tuple[str, int, int]
Verses = dict[Key, str]

MODULES = {"es": "spaRV1909eb", "en": "engWEB2015eb"}
PACKAGES = {"es": "sword-text-sparv", "en": "sword-text-web"}
TEST_BOOKS = ("Ruth", "Eccl", "Jonah", "Gal", "Phil", "Jas")
VALID_BOOKS = ("Esth", "Lam", "1Thess", "2Thess", "1John", "2John", "3John")

# ------------------------------------------------------------------ where the modules come from


def find_modules(sword_path: Path | None, cache: Path) -> dict[str, Path]:
    """The SWORD folder (with `mods.d` in it) of each language's module.

    Raises:
        TextError: `sword_path` lacks a module, or there are neither modules nor apt.
    """
    if sword_path is not None:
        found = _modules_in([sword_path])
        missing = [MODULES[language] for language in MODULES if language not in found]
        if missing:
            raise TextError(
                f"--sword-path {sword_path} has no module {' and no module '.join(missing)}: it "
                "must be a folder with mods.d/*.conf and modules/, such as /usr/share/sword"
            )
        return found
    installed = [Path("/usr/share/sword"), Path.home() / ".sword"]
    if os.environ.get("SWORD_PATH"):
        installed.insert(0, Path(os.environ["SWORD_PATH"]))
    unpacked = cache / "sword"
    found = _modules_in([*installed, unpacked / "usr" / "share" / "sword"])
    if len(found) < len(MODULES):
        with _alone(unpacked):
            # from a run that began at the same time, perhaps
            found = _modules_in([*installed, unpacked / "usr" / "share" / "sword"])
            if len(found) < len(MODULES):
                _fetch(unpacked)
                found = _modules_in([*installed, unpacked / "usr" / "share" / "sword"])
    for language, name in MODULES.items():
        if language not in found:
            raise TextError(
                f"the package {PACKAGES[language]} was unpacked into {unpacked}, but has no module "
                f"{name}. {_other_ways()}"
            )
    return found


def _modules_in(roots: Iterable[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for root in roots:
        for language, name in MODULES.items():
            if language not in found and (root / "mods.d" / f"{name}.conf").is_file():
                found[language] = root
    return found


def _other_ways() -> str:
    names = " ".join(PACKAGES.values())
    return (
        f"Ways to get the text: `sudo apt-get install {names}`; or on a Debian or Ubuntu machine "
        f"`apt-get download {names}`, unpack both with `dpkg-deb -x FILE DIR`, copy DIR here and "
        "say --sword-path DIR/usr/share/sword. Or use your own parallel text: the recipe `custom` "
        "takes two files, one sentence a line each"
    )


@contextlib.contextmanager
def _alone(unpacked: Path) -> Iterator[None]:
    """Wait until no other process fetches into the same folder."""
    try:
        unpacked.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(unpacked.parent, os.O_RDONLY)  # of the folder itself: nothing to clear away
    except OSError as error:
        raise _unwritable(unpacked, error) from error
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _unwritable(unpacked: Path, error: OSError) -> TextError:
    return TextError(
        f"cannot write {unpacked.parent}: {error.strerror}. Choose another folder with --cache"
    )


def _fetch(unpacked: Path) -> None:
    """Download and unpack both packages; `unpacked` appears only when it is complete."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise TextError(
            "the SWORD modules are not installed, and this machine has no apt-get and dpkg-deb to "
            f"fetch them with. {_other_ways()}"
        )
    packages = list(PACKAGES.values())
    print(f"fetching {' and '.join(packages)} (5 MB, no root needed) …", flush=True)
    part = unpacked.with_name(f".{unpacked.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    except OSError as error:
        raise _unwritable(unpacked, error) from error
    # Output is kept for the error message: apt warns, as root, that its sandbox user cannot write
    # here, and then downloads all the same.
    try:
        _call(["apt-get", "download", *packages], part)
        for deb in sorted(part.glob("*.deb")):
            _call(["dpkg-deb", "-x", str(deb), str(part)], part)
            deb.unlink()
        shutil.rmtree(unpacked, ignore_errors=True)
        part.replace(unpacked)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _call(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        output = done.stderr + done.stdout
        if done.returncode == 0:
            return
    except subprocess.TimeoutExpired:
        output = "no answer within 300 seconds"
    lines = [line for line in output.splitlines() if line and not line.startswith("W:")]
    hint = ""
    if re.search(r"Unable to locate|Can't find a source|No packages found|Can't select", output):
        hint = "The package lists are missing or old: run `sudo apt-get update` and try again. "
    raise TextError(f"`{' '.join(command)}` failed: {' '.join(lines[-3:])}. {hint}{_other_ways()}")


# ------------------------------------------------------------------ reading


def read_module(root: Path, name: str) -> Verses:
    """The raw (OSIS) text of every verse that is not empty, in canonical order.

    pysword decompresses a whole book to give one verse; here the last book is kept, which takes
    the reading of a Bible from a minute to half a second.

    Raises:
        TextError: pysword is missing, or the module is damaged.
    """
    try:
        from pysword.modules import SwordModules
    except ImportError as error:
        raise TextError("the package pysword is missing: pip install pysword") from error
    modules = SwordModules(str(root))
    modules.parse_modules()
    try:
        bible = modules.get_bible_from_module(name)
    except (KeyError, OSError, ValueError) as error:
        raise TextError(f"cannot open the module {name} in {root}: {error}") from error
    if hasattr(bible, "_decompressed_text"):
        decompress = bible._decompressed_text

        @functools.lru_cache(maxsize=2)
        def block(testament: str, number: int) -> bytes:
            data = decompress(testament, number)
            if not data:  # pysword turns a decompression error into an empty block
                raise TextError(
                    f"the module {name} in {root} is damaged (block {number} of {testament}): "
                    "get it anew"
                )
            return data

        bible._decompressed_text = block
    verses: Verses = {}
    structure = bible.get_structure()
    for testament, books in structure.get_books().items():
        for book in books:
            offset = structure._book_offset(book.name)
            for chapter in range(1, book.num_chapters + 1):
                indices = book.get_indicies(chapters=chapter, offset=offset)
                for verse, index in enumerate(indices, 1):
                    text = bible._text_for_index(testament, index)
                    if text and text.strip():
                        verses[book.osis_name, chapter, verse] = text
    if not verses:
        raise TextError(f"the module {name} in {root} has no text: get it anew")
    return verses


_GAP = "\x00"  # where something was taken out between two words
_CUT = re.compile(r"<(?:div|milestone)\b[^>]*(?:glossary|introduction|colophon)[^>]*>.*", re.S)
_DROPPED = re.compile(
    r"<(note|catchWord|rdg|rdgGroup|speaker|figure|index|abbr)\b[^>]*?(?:/>|(?<!/)>.*?</\1\s*>)",
    re.S | re.I,
)
_HEADING = re.compile(r"<title\b(?![^>]*canonical=\"true\")[^>]*>.*?</title>", re.S | re.I)
_BREAK = re.compile(
    r"</?(?:title|div|l|lg|lb|p|item|list|milestone|chapter|verse|row|cell)\b[^>]*>"
)
_TAG = re.compile(r"<[^>]*>")


def clean(osis: str) -> str:
    """The text of a verse without markup.

    Dropped with their content: notes, variants, headings, speakers' names and what follows a book
    (a glossary). Kept: Psalm titles (`canonical`), which the Spanish module has as plain text, and
    words that the translators added. Strong's numbers are attributes and go with their tags.
    """
    text = _CUT.sub("", osis)
    text = _DROPPED.sub(_GAP, text)
    text = _HEADING.sub(" ", text)
    text = _BREAK.sub(" ", text)
    # "hay allí</w><transChange>también</transChange><w>bdelio": words of their own, unspaced.
    text = re.sub(r"</w>(?=<(?:w|transChange)\b)|</transChange>(?=<w\b)", " ", text)
    text = _TAG.sub("", text)
    text = html.unescape(text)
    # A note stands between two words with or without a space of its own.
    text = re.sub(rf"{_GAP}+(?=[\s,.;:?!’”)])|(?<=[\s“‘(¿¡]){_GAP}+", "", text)
    text = text.replace(_GAP, " ").replace("¶", " ")
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r" +(?=[,.;:?!”)])", "", text)
    return re.sub(r"(?<=[(“¿¡]) +", "", text)


def drop_colophons(verses: Verses) -> Verses:
    """Without the notes "written from Athens" that the Spanish letters end with, after "Amén."."""
    last = {(book, chapter): verse for book, chapter, verse in verses}
    written = re.compile(r"(?<=Amén\.) (?=.*\b(?:escrit|enviad)[ao]\b).*$", re.I)
    return {
        key: written.sub("", text) if last[key[:2]] == key[2] else text
        for key, text in verses.items()
    }


def lower_initials(verses: Verses) -> Verses:
    """Undo the capitals that open a chapter in print: "EN el principio", "Y ACONTECIÓ".

    In the first verse of a chapter, a word in capitals is written as it mostly is elsewhere inside
    a sentence, and with a capital where it opens one.
    """
    forms: dict[str, Counter[str]] = defaultdict(Counter)
    for (_, _, verse), text in verses.items():
        if verse != 1:
            for word in re.findall(r"(?<=[\w,] )\w+", text):
                if not (len(word) > 1 and word.isupper()):
                    forms[word.lower()][word] += 1

    def usual(match: re.Match[str]) -> str:
        if not match[0].isupper():
            return match[0]
        word = match[0].lower()
        before = match.string[: match.start()].rstrip(" ¿¡(«“")
        if not before or before[-1] in ".?!:":
            return word.capitalize()
        return forms[word].most_common(1)[0][0] if word in forms else word

    return {
        key: re.sub(r"\w{2,}", usual, text) if key[2] == 1 else text for key, text in verses.items()
    }


# ------------------------------------------------------------------ alignment


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))


@dataclass
class Lexicon:
    """How much of two texts are translations of each other, by words that come together often.

    Attributes:
        forward: source word → target word → Dice coefficient, from 0.15 up.
        backward: the same, the other way round.
    """

    forward: dict[str, dict[str, float]]
    backward: dict[str, dict[str, float]]

    @classmethod
    def count(cls, pairs: Iterable[tuple[str, str]], *, commonest: float = 0.03) -> Lexicon:
        """Count a lexicon from pairs that are mostly aligned.

        Words in more than the share `commonest` of the pairs say little and are left out.
        """
        bags = [(_words(source), _words(target)) for source, target in pairs]
        left = Counter(word for bag, _ in bags for word in bag)
        right = Counter(word for _, bag in bags for word in bag)
        most = max(20, commonest * len(bags))
        together: dict[str, Counter[str]] = defaultdict(Counter)
        for source_bag, target_bag in bags:
            targets = [word for word in target_bag if 2 <= right[word] <= most]
            for word in source_bag:
                if 2 <= left[word] <= most:
                    together[word].update(targets)
        forward: dict[str, dict[str, float]] = defaultdict(dict)
        backward: dict[str, dict[str, float]] = defaultdict(dict)
        # Sets of strings come in another order in every process; sums of floats must not.
        for source in sorted(together):
            for target, count in sorted(together[source].items()):
                dice = 2 * count / (left[source] + right[target])
                if count >= 2 and dice > 0.15:
                    forward[source][target] = dice
                    backward[target][source] = dice
        return cls(dict(forward), dict(backward))

    def likeness(self, source: frozenset[str], target: frozenset[str]) -> float | None:
        """From 0 (no word of one is translated in the other) to 1; None if no word is known."""
        matched = known = 0.0
        for table, words, others in (
            (self.forward, source, target),
            (self.backward, target, source),
        ):
            for word in sorted(words):
                partners = table.get(word)
                if partners:
                    known += max(partners.values())
                    matched += max(
                        (partners[other] for other in partners if other in others), default=0.0
                    )
        return matched / known if known else None


@dataclass
class Aligned:
    """Aligned verses, and how they came about.

    Attributes:
        pairs: (key of the target verse, source text, target text), in order.
        realigned: chapters that were aligned anew, and how many of their verses moved.
        unpaired: verses of source and of target, of books both have, that found no partner.
    """

    pairs: list[tuple[Key, str, str]]
    realigned: dict[tuple[str, int], int]
    unpaired: tuple[int, int]


# (source verses, target verses) of one aligned unit, and what it costs not to be one to one.
_BEADS = (((1, 1), 0.0), ((1, 0), 0.1), ((0, 1), 0.1), ((2, 1), 0.35), ((1, 2), 0.35))
_BAND = 8  # how far a verse may have moved


def align(source: Verses, target: Verses, order: Sequence[Key]) -> Aligned:
    """Join verses on their keys; align the chapters anew whose verses are shifted.

    Args:
        source: cleaned verses.
        target: cleaned verses; their keys name the pairs.
        order: all keys of either side, in canonical order.
    """
    common = [key for key in order if key in source and key in target]
    lexicon = Lexicon.count((source[key], target[key]) for key in common)
    source_bags = {key: _words(text) for key, text in source.items()}
    target_bags = {key: _words(text) for key, text in target.items()}
    shifted = _shifted_chapters(common, lexicon, source_bags, target_bags)

    # A verse pushed out of a shifted chapter lies in the one before or after it.
    chapters = list(dict.fromkeys(key[:2] for key in order))
    runs: list[list[tuple[str, int]]] = []
    for i, chapter in enumerate(chapters):
        near = [c for c in chapters[max(0, i - 1) : i + 2] if c[0] == chapter[0]]
        if any(c in shifted for c in near):
            if (
                runs
                and runs[-1][-1] == (chapters[i - 1] if i else None)
                and (runs[-1][-1][0] == chapter[0])
            ):
                runs[-1].append(chapter)
            else:
                runs.append([chapter])
    run_of = {chapter: number for number, run in enumerate(runs) for chapter in run}

    position = {key: i for i, key in enumerate(order)}
    units: list[tuple[Key, str, str]] = []
    moved: dict[tuple[str, int], int] = {}
    for key in common:
        if key[:2] not in run_of:
            units.append((key, source[key], target[key]))
    for run in runs:
        members = set(run)
        keys = [key for key in order if key[:2] in members]
        left = [key for key in keys if key in source]
        right = [key for key in keys if key in target]
        for left_keys, right_keys in _align_run(left, right, lexicon, source_bags, target_bags):
            if left_keys and right_keys:
                units.append(
                    (
                        right_keys[0],
                        " ".join(source[key] for key in left_keys),
                        " ".join(target[key] for key in right_keys),
                    )
                )
                if left_keys != right_keys:
                    chapter = right_keys[0][:2]
                    moved[chapter] = moved.get(chapter, 0) + 1
    units.sort(key=lambda unit: position[unit[0]])
    books = {key[0] for key in common}
    paired = len(units)
    return Aligned(
        units,
        dict(sorted(moved.items(), key=lambda item: chapters.index(item[0]))),
        (
            sum(key[0] in books for key in source) - paired,
            sum(key[0] in books for key in target) - paired,
        ),
    )


def _shifted_chapters(
    keys: Sequence[Key],
    lexicon: Lexicon,
    source: Mapping[Key, frozenset[str]],
    target: Mapping[Key, frozenset[str]],
) -> set[tuple[str, int]]:
    """Chapters where two verses or more are much more like a verse near by than like their own."""
    misfits: Counter[tuple[str, int]] = Counter()
    for i, key in enumerate(keys):
        own = lexicon.likeness(source[key], target[key])
        if own is None or own >= 0.3:
            continue
        near = (keys[j] for j in range(max(0, i - 4), min(len(keys), i + 5)) if j != i)
        best = max(
            (lexicon.likeness(source[key], target[k]) or 0.0 for k in near if k[0] == key[0]),
            default=0.0,
        )
        if best > own + 0.25:
            misfits[key[0], key[1]] += 1
    return {chapter for chapter, count in misfits.items() if count >= 2}


def _align_run(
    left: Sequence[Key],
    right: Sequence[Key],
    lexicon: Lexicon,
    source: Mapping[Key, frozenset[str]],
    target: Mapping[Key, frozenset[str]],
) -> list[tuple[tuple[Key, ...], tuple[Key, ...]]]:
    """The best monotone alignment of two runs of verses: dynamic programming over `_BEADS`."""
    rank = {key: j for j, key in enumerate(right)}
    expected: list[int] = []
    j = 0
    for key in left:
        j = rank.get(key, j)
        expected.append(j)
    expected.append(len(right))
    band = max(_BAND, abs(len(left) - len(right)) + 2)
    best: dict[tuple[int, int], float] = {(0, 0): 0.0}
    back: dict[tuple[int, int], tuple[int, int]] = {}
    for i in range(len(left) + 1):
        low, high = max(0, expected[i] - band), min(len(right), expected[i] + band)
        for j in range(low if i else 0, high + 1):
            if (i, j) not in best:
                continue
            for (rows, columns), cost in _BEADS:
                if i + rows > len(left) or j + columns > len(right):
                    continue
                score = -cost
                if rows and columns:
                    a = frozenset().union(*(source[key] for key in left[i : i + rows]))
                    b = frozenset().union(*(target[key] for key in right[j : j + columns]))
                    like = lexicon.likeness(a, b)
                    score += (0.2 if like is None else like) * (rows + columns) / 2
                    if left[i : i + rows] == right[j : j + columns]:
                        score += 0.05
                step = (i + rows, j + columns)
                if best[i, j] + score > best.get(step, float("-inf")):
                    best[step] = best[i, j] + score
                    back[step] = (rows, columns)
    result = []
    i, j = len(left), len(right)
    while i or j:
        rows, columns = back[i, j]
        result.append((tuple(left[i - rows : i]), tuple(right[j - columns : j])))
        i, j = i - rows, j - columns
    return result[::-1]


# ------------------------------------------------------------------ building


def build(
    out: Path,
    *,
    pair: str = "es-en",
    sword_path: Path | None = None,
    cache: Path | None = None,
    max_words: int | None = 30,
    max_ratio: float | None = 1.8,
    limit: str | int | None = None,
    seed: int = 1,
) -> dict[str, Any]:
    """Build the corpus; the files are the same on every run with the same arguments.

    Args:
        out: the folder for the files.
        pair: `es-en` or `en-es`.
        sword_path: folder with `mods.d` and `modules`; None: installed or fetched.
        cache: where fetched modules are kept; None: `cache` beside this script.
        max_words: longest training verse, in words a side.
        max_ratio: training pairs whose lengths differ by more than this factor are dropped.
        limit: training pairs kept (`800`, `5k`); None: all.
        seed: of the shuffle that the limit cuts.

    Returns:
        What `statistics.json` says.

    Raises:
        TextError: with what to do.
    """
    if pair not in ("es-en", "en-es"):
        raise TextError(f"pair {pair!r} is not one that these Bibles give: es-en or en-es")
    corpus.parse_limit(limit)
    languages = pair.split("-")
    folders = find_modules(sword_path, cache or Path(__file__).resolve().parent / "cache")
    raw = {language: read_module(folders[language], MODULES[language]) for language in languages}
    texts = {
        language: {key: text for key, osis in raw[language].items() if (text := clean(osis))}
        for language in languages
    }
    texts["es"] = lower_initials(drop_colophons(texts["es"]))
    order = _merge(list(texts["en"]), list(texts["es"]))
    # Always aligned in one direction: en-es is es-en with the columns swapped.
    aligned = align(texts["es"], texts["en"], order)
    pairs = [
        Pair(*((es, en) if pair == "es-en" else (en, es)), key=".".join(map(str, key)))
        for key, es, en in aligned.pairs
    ]
    books = [pair_.key.split(".")[0] for pair_ in pairs]
    for book in (*VALID_BOOKS, *TEST_BOOKS):
        if book not in books:
            raise TextError(
                f"no verse of {book}, a held-out book, is in both modules: they are not the whole "
                f"Bibles this script expects ({', '.join(MODULES.values())})"
            )
    test = [p for p, book in zip(pairs, books, strict=True) if book in TEST_BOOKS]
    valid = [p for p, book in zip(pairs, books, strict=True) if book in VALID_BOOKS]
    candidates = [
        p
        for p, book in zip(pairs, books, strict=True)
        if book not in TEST_BOOKS and book not in VALID_BOOKS
    ]
    keep = corpus.TrainFilter([*valid, *test], max_words=max_words, max_ratio=max_ratio)
    allowed = list(keep(candidates))
    train = corpus.draw(allowed, limit, seed)
    corpus.write_lines(out / "corpus.tsv", (f"{p.key}\t{p.source}\t{p.target}" for p in pairs))
    return corpus.write_corpus(
        out,
        {"train": train, "valid": valid, "test": test},
        source=languages[0],
        target=languages[1],
        statistics={
            "modules": {language: MODULES[language] for language in languages},
            "seed": seed,
            "max_words": max_words,
            "max_ratio": max_ratio,
            "limit": corpus.parse_limit(limit),
            "valid_books": list(VALID_BOOKS),
            "test_books": list(TEST_BOOKS),
            "verses": {language: len(texts[language]) for language in languages},
            "empty_verses": {
                language: len(raw[language]) - len(texts[language]) for language in languages
            },
            "aligned": len(pairs),
            "unpaired": dict(zip(("es", "en"), aligned.unpaired, strict=True)),
            "realigned": {f"{b}.{c}": count for (b, c), count in aligned.realigned.items()},
            "dropped_from_train": {
                **keep.dropped,
                "over the limit": len(allowed) - len(train),
            },
        },
    )


def _merge(first: list[Key], second: list[Key]) -> list[Key]:
    """All keys of both lists, books in the order of `first`, verses in their numerical order."""
    rank = {book: i for i, book in enumerate(dict.fromkeys(key[0] for key in [*first, *second]))}
    return sorted({*first, *second}, key=lambda key: (rank[key[0]], key[1], key[2]))


def report(statistics: Mapping[str, Any]) -> str:
    """The statistics for people."""
    verses, empty = statistics["verses"], statistics["empty_verses"]
    lines = [
        ", ".join(
            f"{language}: {verses[language]:,} verses ({empty[language]} empty)"
            for language in verses
        )
    ]
    without = ", ".join(f"{count:,} {side}" for side, count in statistics["unpaired"].items())
    lines.append(
        f"aligned: {statistics['aligned']:,}; verses of common books left alone or joined to "
        f"another: {without}"
    )
    moved = statistics["realigned"]
    lines.append(
        f"aligned anew: {sum(moved.values())} verses in {len(moved)} chapters "
        f"({', '.join(f'{chapter}: {count}' for chapter, count in moved.items())})"
    )
    lines.append(corpus.format_statistics(statistics))
    lines.append(f"valid: {' '.join(statistics['valid_books'])}")
    lines.append(f"test: {' '.join(statistics['test_books'])}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0 on success, 1 with a message on stderr."""
    parser = argparse.ArgumentParser(
        description="Build the Spanish-English corpus from two public-domain Bibles.",
        epilog="With neither apt nor the modules: the recipe `custom` takes your own two files.",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the corpus")
    parser.add_argument("--pair", default="es-en", choices=["es-en", "en-es"])
    parser.add_argument(
        "--sword-path", type=Path, help="folder with mods.d/ and modules/ (default: installed)"
    )
    parser.add_argument(
        "--cache", type=Path, help="where fetched modules are kept (default: data/cache)"
    )
    parser.add_argument(
        "--max-words", type=int, default=30, help="longest training verse (default: 30)"
    )
    parser.add_argument(
        "--max-ratio", type=float, default=1.8, help="of lengths, for training (default: 1.8)"
    )
    parser.add_argument("--limit", help="training pairs to keep: 800, 5k, 10k (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the limit's shuffle (default: 1)")
    options = vars(parser.parse_args(arguments))
    try:
        print(report(build(options.pop("out"), **options)))
    except TextError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
