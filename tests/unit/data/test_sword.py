"""The corpus of the two Bibles: on small modules written here, and on the real ones where had."""

import importlib.util
import json
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

pytest.importorskip("pysword")
from pysword.books import BibleStructure

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "data" / "sword.py"


def _load():
    spec = importlib.util.spec_from_file_location("sword_under_test", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


sword = _load()
TextError = sword.TextError


# ------------------------------------------------------------------ small modules


def write_module(root: Path, name: str, versification: str, verses: dict) -> None:
    """A SWORD zText module: a compressed block a book, an index record a verse."""
    folder = root / "modules" / "texts" / "ztext" / name
    folder.mkdir(parents=True, exist_ok=True)
    (root / "mods.d").mkdir(exist_ok=True)
    (root / "mods.d" / f"{name}.conf").write_text(
        f"[{name}]\nDataPath=./modules/texts/ztext/{name}/\nModDrv=zText\nSourceType=OSIS\n"
        f"Encoding=UTF-8\nCompressType=ZIP\nBlockType=BOOK\nVersification={versification}\n"
    )
    structure = BibleStructure(versification.lower(), ["ot", "nt"])
    for testament, books in structure.get_books().items():
        records: dict[int, tuple[int, int, int]] = {}
        blocks, end = b"", b""
        for book in books:
            mine = {key[1:]: text for key, text in verses.items() if key[0] == book.osis_name}
            if not mine:
                continue
            number, plain = len(end) // 12, b""
            for (chapter, verse), text in mine.items():
                offset = structure._book_offset(book.name)
                [index] = book.get_indicies(chapters=chapter, verses=verse, offset=offset)
                records[index] = (number, len(plain), len(text.encode()))
                plain += text.encode()
            packed = zlib.compress(plain)
            end += struct.pack("<III", len(blocks), len(packed), len(plain))
            blocks += packed
        index = b"".join(
            struct.pack("<IIH", *records.get(i, (0, 0, 0))) for i in range(max(records) + 1)
        )
        (folder / f"{testament}.bzv").write_bytes(index)
        (folder / f"{testament}.bzs").write_bytes(end)
        (folder / f"{testament}.bzz").write_bytes(blocks)


def parallel(keys, *, seed: int = 1, words: int = 250) -> tuple[dict, dict]:
    """Verses of words that translate one by one: `ab7` and `cd7`."""
    rng = random.Random(seed)
    rows = {key: rng.sample(range(words), rng.randrange(5, 11)) for key in keys}
    return (
        {key: " ".join(f"es{i}" for i in row) for key, row in rows.items()},
        {key: " ".join(f"en{i}" for i in row) for key, row in rows.items()},
    )


def same_row(source: str, target: str) -> bool:
    return source.replace("es", "en").split() == target.split()


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    root = tmp_path_factory.mktemp("sword")
    keys = [("Gen", chapter, verse) for chapter in range(1, 12) for verse in range(1, 17)]
    keys += [("Matt", chapter, verse) for chapter in range(1, 8) for verse in range(1, 17)]
    keys += [(book, 1, v) for book in (*sword.VALID_BOOKS, *sword.TEST_BOOKS) for v in range(1, 6)]
    spanish, english = parallel(keys)
    english["Gen", 3, 3] = ""  # a verse that one side lacks
    spanish["Gen", 4, 4] = spanish["Ruth", 1, 1]  # held out
    spanish["Gen", 5, 5] = " ".join(f"es{i}" for i in range(40))  # too long
    spanish["Matt", 1, 2], english["Matt", 1, 2] = spanish["Matt", 1, 3], english["Matt", 1, 3]
    write_module(root, sword.MODULES["es"], "KJV", spanish)
    write_module(root, sword.MODULES["en"], "NRSVA", {k: f"<w>{v}</w>" for k, v in english.items()})
    return root, spanish, english


def read(folder: Path, split: str, pair: str = "es-en") -> list[tuple[str, ...]]:
    names = [*pair.split("-"), "keys"]
    return list(
        zip(*((folder / f"{split}.{n}").read_text().splitlines() for n in names), strict=True)
    )


def test_corpus_from_modules(modules, tmp_path):
    root, spanish, english = modules
    statistics = sword.build(tmp_path, sword_path=root)
    splits = {split: read(tmp_path, split) for split in ("train", "valid", "test")}
    for split, rows in splits.items():
        books = {key.split(".")[0] for _, _, key in rows}
        assert bool(books & set(sword.TEST_BOOKS)) == (split == "test")
        assert bool(books & set(sword.VALID_BOOKS)) == (split == "valid")
    keys = {key for _, _, key in splits["train"]}
    assert not keys & {"Gen.3.3", "Gen.4.4", "Gen.5.5"}
    assert len(keys & {"Matt.1.2", "Matt.1.3"}) == 1
    for source, target, key in [row for rows in splits.values() for row in rows]:
        book, chapter, verse = key.split(".")
        place = book, int(chapter), int(verse)
        assert (source, target) == (spanish[place], english[place])
    assert statistics["empty_verses"] == {"es": 0, "en": 1}
    dropped = statistics["dropped_from_train"]
    assert (dropped["held out"], dropped["too long"], dropped["duplicate"]) == (1, 1, 1)
    assert statistics["aligned"] == len((tmp_path / "corpus.tsv").read_text().splitlines())
    assert statistics["aligned"] == sum(dropped.values()) + sum(map(len, splits.values()))
    assert json.loads((tmp_path / "statistics.json").read_text()) == statistics


def test_runs_from_anywhere_without_torch_and_the_same_each_time(modules, tmp_path):
    root, _, _ = modules
    code = (
        "import runpy, sys; sys.modules['torch'] = sys.modules['fairseq'] = None; "
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    for name in ("one", "two"):
        command = [sys.executable, "-c", code, str(SCRIPT), "--out", name]
        command += ["--sword-path", str(root), "--limit", "0.1k", "--pair", "en-es"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "train" in done.stdout and "OOV" in done.stdout and done.stderr == ""
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == 11
    for file in files:
        one, two = (tmp_path / name / file for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
    assert len(read(tmp_path / "one", "train", "en-es")) == 100


def test_the_reverse_direction_is_the_same_corpus(modules, tmp_path):
    root, _, _ = modules
    sword.build(tmp_path / "a", sword_path=root)
    sword.build(tmp_path / "b", sword_path=root, pair="en-es")
    for split in ("train", "valid", "test"):
        there, back = read(tmp_path / "a", split), read(tmp_path / "b", split, "en-es")
        assert there == [(source, target, key) for target, source, key in back]


def test_a_damaged_module_is_an_error(modules, tmp_path):
    _, spanish, english = modules
    for language, verses, system in (("es", spanish, "KJV"), ("en", english, "NRSVA")):
        write_module(tmp_path, sword.MODULES[language], system, verses)
    block = next(tmp_path.glob("modules/texts/ztext/spa*/nt.bzz"))
    block.write_bytes(b"x" * block.stat().st_size)
    with pytest.raises(TextError, match="damaged"):
        sword.build(tmp_path / "out", sword_path=tmp_path)
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------ getting the modules


def test_a_folder_without_modules_is_named(tmp_path):
    with pytest.raises(TextError, match=r"no module spaRV1909eb .*mods\.d"):
        sword.find_modules(tmp_path, tmp_path)


def test_neither_apt_nor_modules(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sword, "_modules_in", lambda roots: {})
    monkeypatch.setattr(sword.shutil, "which", lambda name: None)
    assert sword.main(["--out", str(tmp_path / "out"), "--cache", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    for advice in ("apt-get install", "sword-text-web", "--sword-path", "custom"):
        assert advice in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "script, said",
    [
        ("echo 'E: Unable to locate package sword-text-web' >&2; exit 100", "apt-get update"),
        ("echo 'W: unsandboxed' >&2; exit 100", "apt-get download"),
    ],
)
def test_apt_failing_says_what_to_do_and_leaves_nothing(tmp_path, monkeypatch, script, said):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("apt-get", "dpkg-deb"):
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr(sword, "_modules_in", lambda roots: {})
    with pytest.raises(TextError, match=said) as error:
        sword.find_modules(None, tmp_path / "cache")
    assert "unsandboxed" not in str(error.value)
    assert not list((tmp_path / "cache").iterdir())


def test_two_runs_at_once_fetch_once(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    scripts = {  # slow ones, that do what the real ones do
        "apt-get": "echo x >> $CALLS; sleep 0.7; touch a.deb b.deb",
        "dpkg-deb": "sleep 0.2; mkdir -p $3/usr/share/sword/mods.d; cd $3/usr/share/sword/mods.d; "
        "touch spaRV1909eb.conf engWEB2015eb.conf",
    }
    for name, script in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    code = (
        "import importlib.util as u, pathlib, sys\n"
        "spec = u.spec_from_file_location('sword', sys.argv[1])\n"
        "module = sys.modules['sword'] = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "real = module._modules_in\n"  # but for modules that this machine has installed
        "cache = pathlib.Path(sys.argv[2])\n"
        "module._modules_in = lambda roots: real([r for r in roots if cache in r.parents])\n"
        "print(sorted(module.find_modules(None, cache)))\n"
    )
    env = {"PATH": f"{tools}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls"), "HOME": "/"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(SCRIPT), str(tmp_path / "cache")],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(3)
    ]  # fmt: skip
    for run in runs:
        output, _ = run.communicate(timeout=60)
        assert run.returncode == 0 and output.endswith("['en', 'es']\n"), output
    assert (tmp_path / "calls").read_text() == "x\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["sword"]


# ------------------------------------------------------------------ text


@pytest.mark.parametrize(
    "osis, text",
    [
        ('<w lemma="strong:G1">In</w> <w lemma="x">him</w>, ', "In him,"),
        ('<w>God</w><note placement="foot"><reference>1:1 </reference>Elohim.</note><w>made</w>',
         "God made"),
        ("“<w>Behold</w>,<note>“See”</note> I</w>", "“Behold, I"),
        ("the king<note>or: his</note>’s house", "the king’s house"),
        ("<w>two</w><note>x</note>.", "two."),
        ('<title canonical="true" type="psalm">A Psalm.</title> <l sID="g"/>O', "A Psalm. O"),
        ('<title type="main">Book One</title>Blessed', "Blessed"),
        ("<speaker>Lover</speaker> <lg/>You", "You"),
        ('so<l eID="a"/><l sID="b"/>that', "so that"),
        ("<w>hay</w><transChange>también</transChange><w>bdelio</w>", "hay también bdelio"),
        ("preguntándo<transChange>le</transChange>, ", "preguntándole,"),
        ('Amen. <chapter eID="Rev.22"/><div type="glossary"/> <title>G</title> Abba is', "Amen."),
        ("bread &amp; wine", "bread & wine"),
        ('<q marker="" who="Jesus">”</q>', "”"),
        ("<note>only a note</note>", ""),
        ("( so ) ¿ qué ?", "(so) ¿qué?"),
    ],
)  # fmt: skip
def test_clean(osis, text):
    assert sword.clean(osis) == text


def test_initial_capitals_are_undone():
    verses = {
        ("Gen", 1, 1): "EN el principio",
        ("Gen", 2, 1): "Y JEHOVÁ dijo á MOISÉS",
        ("Gen", 2, 2): "y dijo Jehová á Moisés, y Jehová habló á Moisés",
        ("Gen", 3, 1): "Salmo. ¡OH DIOS mío! A TI clamo",
        ("Gen", 3, 2): "yo, Dios, á ti y á mi Dios",
        ("Gen", 3, 14): "YO SOY EL QUE SOY",
    }
    lowered = sword.lower_initials(verses)
    assert lowered["Gen", 1, 1] == "En el principio"
    assert lowered["Gen", 2, 1] == "Y Jehová dijo á Moisés"
    assert lowered["Gen", 3, 1] == "Salmo. ¡Oh Dios mío! A ti clamo"
    assert lowered["Gen", 3, 14] == verses["Gen", 3, 14]


def test_colophons_are_dropped():
    verses = {
        ("Gal", 6, 17): "Amén. fué escrita",
        ("Gal", 6, 18): "La gracia sea con vosotros. Amén. Enviada de Roma á los Gálatas.",
        ("Rev", 22, 20): "Amén. Sea así. Ven.",
    }
    dropped = sword.drop_colophons(verses)
    assert dropped["Gal", 6, 18] == "La gracia sea con vosotros. Amén."
    assert {k: v for k, v in dropped.items() if k[1:] != (6, 18)} == {
        k: v for k, v in verses.items() if k[1:] != (6, 18)
    }


# ------------------------------------------------------------------ alignment


@pytest.mark.parametrize("shift", [-2, -1, 1, 3])
def test_shifted_chapters_are_aligned_anew(shift):
    """Chapter 5's verses begin later or earlier on the Spanish side; nothing else may change."""
    chapters = [("Gen", chapter, verse) for chapter in range(1, 10) for verse in range(1, 19)]
    spanish, english = parallel(chapters)
    first, last = chapters.index(("Gen", 5, 1)), chapters.index(("Gen", 6, 1))
    run = [spanish[key] for key in chapters[first:last]]
    moved = dict(spanish)
    for key in chapters[first:last]:
        del moved[key]
    if shift > 0:  # verses at the start are lost, the others move up
        run = run[shift:]
        renamed = chapters[first : first + len(run)]
    else:  # verses of the chapter before are numbered with this one
        run = [spanish[key] for key in chapters[first + shift : first]] + run
        for key in chapters[first + shift : first]:
            del moved[key]
        renamed = [("Gen", 5, verse) for verse in range(1, len(run) + 1)]
    moved.update(zip(renamed, run, strict=True))
    order = sword._merge(list(english), list(moved))
    aligned = sword.align(moved, english, order)
    assert all(same_row(source, target) for _, source, target in aligned.pairs)
    assert len(aligned.pairs) == len(moved)
    assert {chapter for _, chapter in aligned.realigned} <= {4, 5, 6}
    assert [english[key] for key, _, _ in aligned.pairs] == [t for _, _, t in aligned.pairs]


def test_a_verse_divided_on_one_side_is_joined():
    chapters = [("Gen", chapter, verse) for chapter in range(1, 8) for verse in range(1, 17)]
    spanish, english = parallel(chapters)
    moved = {key: text for key, text in spanish.items() if key[1] != 4}
    texts = [spanish["Gen", 4, verse] for verse in range(1, 17)]
    texts[4:6] = [f"{texts[4]} {texts[5]}"]
    moved.update({("Gen", 4, v): text for v, text in enumerate(texts, 1)})
    aligned = sword.align(moved, english, sword._merge(list(english), list(moved)))
    assert all(same_row(source, target) for _, source, target in aligned.pairs)
    assert len(aligned.pairs) == len(chapters) - 1


def test_aligned_verses_stay_as_they_are():
    keys = [("Gen", chapter, verse) for chapter in range(1, 8) for verse in range(1, 15)]
    spanish, english = parallel(keys)
    aligned = sword.align(spanish, english, keys)
    assert aligned.pairs == [(key, spanish[key], english[key]) for key in keys]
    assert aligned.realigned == {} and aligned.unpaired == (0, 0)


# ------------------------------------------------------------------ the real modules


@pytest.mark.slow
def test_the_real_corpus(tmp_path):
    try:
        sword.find_modules(None, ROOT / "data" / "cache")
    except TextError as error:
        pytest.skip(f"the SWORD modules cannot be had here: {error}")
    statistics = sword.build(tmp_path)
    assert statistics["aligned"] > 30_000
    assert statistics["splits"]["train"]["pairs"] > 15_000
    for split in ("valid", "test"):
        assert 500 <= statistics["splits"][split]["pairs"] <= 1000
    rows = [line.split("\t") for line in (tmp_path / "corpus.tsv").read_text().splitlines()]
    verses = {key: (source, target) for key, source, target in rows}
    for _, *texts in rows:
        for text in texts:
            assert text == " ".join(text.split()) and text
            assert not set(text) & set("<>&[]{}¶\x00\ufffd/0123456789")
    # Chapters that the two modules divide differently.
    for key, spanish, english in (
        ("Num.13.1", "Jehová habló á Moisés", "Yahweh spoke to Moses"),
        ("1Sam.24.1", "Filisteos", "Philistines"),
        ("Job.39.1", "cabras monteses", "mountain goats"),
        ("Hos.12.1", "viento", "wind"),
        ("Jonah.2.1", "vientre del pez", "fish’s belly"),
        ("Ps.51.1", "Ten piedad", "Have mercy"),
    ):
        assert spanish in verses[key][0] and english in verses[key][1]
    held = {split: read(tmp_path, split) for split in ("train", "valid", "test")}
    for side in (0, 1):
        train = {row[side] for row in held["train"]}
        assert not train & {row[side] for split in ("valid", "test") for row in held[split]}
