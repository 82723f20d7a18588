"""Reading, checking and preparing parallel text: what must hold for any text, not golden files."""

import gzip
import json
import logging
import random
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_fixed.experiments import corpus
from fairseq_fixed.experiments.corpus import Pair, TextError, TrainFilter, draw, parse_limit
from fairseq_fixed.experiments.parallel_text import (
    deal,
    find_shift,
    load_parallel,
    load_tsv,
    prepare_custom,
    read_lines,
    write_parallel,
)

# Characters of each verse of Ecclesiastes, Reina-Valera 1909 and World English Bible.
_SPANISH = """
57 77 81 67 82 115 122 132 123 99 104 51 168 109 63 208 136 84 116 60 244 55 69 83 150 190
132 166 178 148 80 144 195 151 140 126 167 139 172 109 128 150 55 207 90 88 77 75 116 79 74
73 53 94 157 83 90 170 80 107 134 170 233 81 128 177 223 90 117 157 41 99 50 241 64 121 80
108 88 84 102 160 144 179 95 117 58 183 105 190 85 117 125 98 107 100 129 106 96 214 168 102
72 222 200 79 79 98 79 102 93 124 81 202 93 134 89 103 67 106 84 104 89 127 61 108 69 150
130 74 75 109 79 74 110 74 91 59 155 188 97 111 101 165 82 104 69 103 100 80 187 148 209 131
168 138 204 198 150 225 226 239 238 103 131 126 107 81 228 160 233 225 67 129 126 139 90 82
131 90 92 115 79 86 77 92 94 130 73 94 90 112 78 78 128 77 90 184 68 81 156 73 167 164 63
209 213 108 161 105 171 152 237 147 85 55 140 88 134 123 115 92
"""
SPANISH = [int(length) for length in _SPANISH.split()]
_ENGLISH = """
63 77 71 81 83 145 116 120 142 120 134 51 178 106 89 174 118 82 119 81 239 77 83 73 171 200
109 181 191 133 69 123 163 180 126 109 192 109 198 109 124 161 56 218 76 100 81 74 122 76 79
73 56 83 181 98 94 161 118 143 130 120 222 71 122 167 230 92 114 125 52 89 45 258 73 134 83
112 113 84 105 173 157 167 93 106 75 179 99 215 77 119 135 128 95 94 147 130 84 229 171 107
73 218 215 87 83 104 74 116 111 133 71 165 97 154 86 99 85 96 84 106 81 94 89 137 83 188 161
94 77 139 76 75 88 77 83 68 183 179 87 133 100 148 61 107 73 106 96 76 204 152 147 135 158
116 250 217 135 249 204 265 221 104 144 158 117 68 227 144 239 209 77 131 119 123 90 72 115
72 112 116 98 63 79 95 94 111 90 86 103 112 88 81 132 85 99 179 69 95 180 77 160 178 81 153
226 118 154 102 193 180 247 140 87 57 139 105 143 117 121 112
"""
ENGLISH = [int(length) for length in _ENGLISH.split()]


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


# ------------------------------------------------------------------ reading


@pytest.mark.parametrize(
    "data, said",
    [
        (b"\xef\xbb\xbfuno\ndos\n", "byte order mark"),
        (b"uno\r\ndos\r\n", "CRLF"),
        (b"uno\ndos", None),
    ],
)
def test_normalised_and_said_once(tmp_path, caplog, data, said):
    assert list(read_lines(write(tmp_path / "t", data))) == ["uno", "dos"]
    assert [said in record.message for record in caplog.records] == ([True] if said else [])


def test_a_bom_inside_the_text_is_text(tmp_path):
    assert list(read_lines(write(tmp_path / "t", "a\n\ufeffb\n"))) == ["a", "\ufeffb"]


@pytest.mark.parametrize("char", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\r"])
def test_only_a_newline_ends_a_line(tmp_path, caplog, char):
    lines = list(read_lines(write(tmp_path / "t", f"a{char}b\nc{char}d\ne\n")))
    assert lines == ["a b", "c d", "e"]
    assert len(caplog.records) == 1 and "2 lines" in caplog.records[0].message


def test_gzip_is_told_by_content(tmp_path):
    assert list(read_lines(write(tmp_path / "t.txt", gzip.compress(b"a\nb\n")))) == ["a", "b"]


@pytest.mark.parametrize(
    "data, words",
    [
        (b"", ["empty"]),
        (b"one\ntwo\nna\xefve\n", ["line 3", "byte 3", "UTF-8", "iconv"]),
        ("a\n".encode("utf-16"), ["UTF-16", "iconv"]),
        (gzip.compress(b"some text\n" * 999)[:-20], ["gzip", "cut off"]),
    ],
)
def test_what_cannot_be_read_says_where_and_what_to_do(tmp_path, data, words):
    path = write(tmp_path / "broken", data)
    with pytest.raises(TextError) as error:
        list(read_lines(path))
    assert all(word in str(error.value) for word in [str(path), *words])


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(TextError, match="nowhere does not exist"):
        list(read_lines(tmp_path / "nowhere"))
    with pytest.raises(TextError, match="is a folder"):
        list(read_lines(tmp_path))


def test_reading_streams(tmp_path):
    """The first line comes before the last one is looked at."""
    path = write(tmp_path / "t", b"good\n" + b"\xff\n")
    lines = read_lines(path)
    assert next(lines) == "good"
    with pytest.raises(TextError):
        next(lines)


# ------------------------------------------------------------------ pairs


def test_empty_sides_are_dropped_from_train_and_kept_in_test(tmp_path, caplog):
    a, b = write(tmp_path / "a", "x\n \ny\n\n"), write(tmp_path / "b", "1\n2\n\t\n\n")
    assert load_parallel(a, b) == [Pair("x", "1", "1")]
    assert "3 pairs with an empty side dropped" in caplog.text
    kept = load_parallel(a, b, keep_empty=True)
    assert [(p.source, p.target) for p in kept] == [("x", "1"), ("", "2"), ("y", ""), ("", "")]


def test_no_text_on_a_side_is_an_error(tmp_path):
    a, b = write(tmp_path / "a", "x\ny\n"), write(tmp_path / "b", "\n\n")
    with pytest.raises(TextError, match="every target sentence is empty"):
        load_parallel(a, b, keep_empty=True)


def test_different_line_counts_name_both_and_the_place(tmp_path):
    missing = 120
    source = ["a" * length for length in SPANISH]
    target = ["b" * length for length in ENGLISH]
    del target[missing]
    a = write(tmp_path / "a", "\n".join(source) + "\n")
    b = write(tmp_path / "b", "\n".join(target) + "\n")
    with pytest.raises(TextError) as error:
        load_parallel(a, b)
    message = str(error.value)
    assert "222" in message and "221" in message
    named = int(message.split("about line ")[1].split()[0].replace(",", ""))
    assert abs(named - (missing + 1)) <= 3


@pytest.mark.parametrize("side", [0, 1])
def test_the_shift_is_found_wherever_a_line_is_missing(side):
    """Real lengths, each line removed in turn; a neighbour of equal length may be named."""
    gaps = []
    for missing in range(len(SPANISH)):
        sides = [list(SPANISH), list(ENGLISH)]
        del sides[side][missing]
        gaps.append(abs(find_shift(*sides) - missing))
    gaps.sort()
    assert gaps[len(gaps) // 2] <= 1 and gaps[int(0.9 * len(gaps))] <= 5


def test_the_first_of_two_shifts_is_named():
    english = [length for i, length in enumerate(ENGLISH) if i not in (60, 180)]
    assert abs(find_shift(SPANISH, english) - 60) <= 3


def test_a_cut_off_end_is_no_shift(tmp_path):
    assert find_shift(SPANISH, ENGLISH[:200]) == 200
    a = write(tmp_path / "a", "".join("x" * n + "\n" for n in SPANISH))
    b = write(tmp_path / "b", "".join("x" * n + "\n" for n in ENGLISH[:200]))
    with pytest.raises(TextError, match="lines 201 to 222 of the longer one have no partner"):
        load_parallel(a, b)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=40), st.lists(st.integers(0, 300), max_size=40))
def test_find_shift_takes_any_lengths(left, right):
    assert 0 <= find_shift(left, right) <= min(len(left), len(right))


def test_find_shift_is_linear():
    lengths = [random.Random(1).randrange(5, 300) for _ in range(100_000)]
    start = time.monotonic()
    find_shift(lengths, lengths[:-3])
    assert time.monotonic() - start < 10


def test_tsv_of_two_columns_and_of_named_ones(tmp_path):
    two = load_tsv(write(tmp_path / "two", "uno\tone\n\tlost\ndos\ttwo\n"))
    assert two == [Pair("uno", "one", "1"), Pair("dos", "two", "3")]
    write(tmp_path / "three", "k 1\tone\tuno\nk 2\t\tdos\n")
    table = f"{tmp_path}/three#key,en,es"
    three = load_tsv(table, ("es", "en"), keep_empty=True)
    assert three == [Pair("uno", "one", "k 1"), Pair("dos", "", "k 2")]
    assert load_tsv(f"{tmp_path}/three#x,en,es", ("es", "en"))[0].key == "1"
    with pytest.raises(TextError, match="no column for each of es and fr"):
        load_tsv(table, ("es", "fr"))
    with pytest.raises(TextError, match=r"line 1: 3 columns where 2 are expected \(es, en\)"):
        load_tsv(f"{tmp_path}/three#es,en", ("es", "en"))


def test_columns_beside_the_sentences_are_not_taken_for_sentences(tmp_path):
    # as ManyThings publishes Tatoeba: without names it is not known which columns to take
    text = "".join(f"I see {i}.\tJe vois {i}.\tCC-BY 2.0 #{i}\n" for i in range(40))
    file = write(tmp_path / "fra.txt", text)
    kwargs = {"source": "en", "target": "fr", "held_out": 3}
    with pytest.raises(TextError, match=r"line 1: 3 columns where 2 .*name them behind the file"):
        prepare_custom(tmp_path / "out", train=[file], **kwargs)
    prepare_custom(tmp_path / "out", train=[f"{file}#en,fr,licence"], **kwargs)
    assert (tmp_path / "out/train.en").read_text().startswith("I see ")
    assert (tmp_path / "out/train.fr").read_text().startswith("Je vois ")


@pytest.mark.parametrize("text", ["uno\n", "a\tb\na\tb\tc\n", "a\tb\tc\n"])
def test_tsv_columns_are_checked(tmp_path, text):
    with pytest.raises(TextError, match=r"line \d: \d column"):
        load_tsv(write(tmp_path / "t", text))


# ------------------------------------------------------------------ filters


def test_limits():
    assert [parse_limit(x) for x in (None, "all", 7, "800", "5k", "2.5k", "1M")] == [
        None, None, 7, 800, 5000, 2500, 1_000_000,
    ]  # fmt: skip
    for wrong in ("", "5q", "-3", "0", "many", "1.5", 0):
        if wrong != "":
            with pytest.raises(TextError, match="limit"):
                parse_limit(wrong)


def test_a_smaller_draw_is_part_of_a_larger_one_and_in_order():
    pairs = [Pair(str(i), str(i), str(i)) for i in range(500)]
    small, large = draw(pairs, 50, 3), draw(pairs, "100", 3)
    assert len(small) == 50 and set(small) < set(large)
    assert small == sorted(small, key=pairs.index)
    assert draw(pairs, 50, 4) != small and draw(pairs, 50, 3) == small


def test_training_holds_no_held_out_sentence_on_either_side():
    keep = TrainFilter([Pair("El fin.", "The end.")], max_words=3, max_ratio=2)
    pairs = [
        Pair("el  fin", "an end"),  # source held out, but for case and spacing
        Pair("fin", "The end!"),  # target held out
        Pair("uno dos", "one two"),
        Pair("uno dos", "one two"),
        Pair("uno dos", "One two"),  # another translation stays
        Pair("a b c d", "a"),
        Pair("a", "x" * 40),
        Pair(" ", "x"),
    ]
    assert [p.target for p in keep(pairs)] == ["one two", "One two"]
    assert keep.dropped == {
        "empty": 1, "too long": 1, "length ratio": 1, "held out": 2, "duplicate": 1,
    }  # fmt: skip


# ------------------------------------------------------------------ writing


def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path):
    path = tmp_path / "f"
    corpus.write_lines(path, ["old"])
    with pytest.raises(RuntimeError), corpus.atomic_writer(path) as handle:
        handle.write(b"half")
        raise RuntimeError
    assert path.read_text() == "old\n" and list(tmp_path.iterdir()) == [path]


def test_a_killed_write_leaves_no_half_file(tmp_path):
    code = (
        "import itertools, sys\n"
        "from fairseq_fixed.experiments.corpus import write_lines\n"
        "def lines():\n"
        "    yield 'x' * 1_000_000\n"
        "    print('writing', flush=True)\n"
        "    while True: yield 'y'\n"
        f"write_lines({str(tmp_path / 'f')!r}, lines())\n"
    )
    root = Path(__file__).parents[3]
    process = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "f").exists()


def test_unwritable_folder_and_line_breaks_are_errors(tmp_path):
    blocked = write(tmp_path / "file", "")
    with pytest.raises(TextError, match=r"cannot write .* choose another output folder"):
        corpus.write_lines(blocked / "f", ["x"])
    with pytest.raises(TextError, match="line 2: the sentence holds a line break"):
        write_parallel(tmp_path / "a", tmp_path / "b", [Pair("x", "y"), Pair("x\ny", "z")])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_with_advice(tmp_path):
    (tmp_path / ".f.part").symlink_to("/dev/full")
    with pytest.raises(TextError, match=r"No space left .* Free space"):
        corpus.write_lines(tmp_path / "f", ["x" * 100_000])
    assert not (tmp_path / "f").exists()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=8))
def test_what_is_written_reads_back(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("rt")
    clean = [
        Pair(*(" ".join(side.replace("\ufeff", "").split()) for side in pair), str(i))
        for i, pair in enumerate(
            [(a.encode("utf-8", "ignore").decode(), b.encode("utf-8", "ignore").decode())
             for a, b in [*pairs, ("x", "y")]], 1
        )
    ]  # fmt: skip
    clean = [Pair(p.source.replace("\0", ""), p.target.replace("\0", ""), p.key) for p in clean]
    clean = [Pair(p.source.strip(), p.target.strip(), p.key) for p in clean]
    write_parallel(folder / "a", folder / "b", clean)
    assert load_parallel(folder / "a", folder / "b", keep_empty=True) == clean


# ------------------------------------------------------------------ custom corpora


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    rows = [[rng.randrange(300) for _ in range(rng.randrange(2, 12))] for _ in range(count)]
    return [(" ".join(f"w{i}" for i in r), " ".join(f"x{i}" for i in r)) for r in rows]


def store(folder: Path, name: str, rows: list[tuple[str, str]]) -> list[Path]:
    return [write(folder / f"{name}.{i}", "".join(row[i] + "\n" for row in rows)) for i in (0, 1)]


def read(folder: Path, split: str) -> list[tuple[str, str]]:
    sides = [(folder / f"{split}.{x}").read_text().splitlines() for x in ("aa", "bb")]
    return list(zip(*sides, strict=True))


@pytest.mark.parametrize("tsv", [False, True])
def test_one_training_text_is_split_without_overlap(tmp_path, tsv):
    rows = sentences(600)
    rows += rows[:100]
    train = store(tmp_path, "t", rows)
    if tsv:
        train = [write(tmp_path / "t.tsv", "".join(f"{a}\t{b}\n" for a, b in rows))]
    settings = {"source": "aa", "target": "bb", "train": train, "held_out": 50, "seed": 5}
    statistics = prepare_custom(tmp_path / "out", **settings, max_words=8)
    splits = {split: read(tmp_path / "out", split) for split in ("train", "valid", "test")}
    assert len(splits["valid"]) == len(splits["test"]) == 50
    for side in (0, 1):
        held = [row[side] for split in ("valid", "test") for row in splits[split]]
        assert len(set(held)) == 100
        assert not set(held) & {row[side] for row in splits["train"]}
    assert len(set(splits["train"])) == len(splits["train"])
    assert max(len(row[0].split()) for row in splits["train"]) <= 8
    assert set().union(*splits.values()) <= set(rows)
    assert json.loads((tmp_path / "out" / "statistics.json").read_text()) == statistics
    total = len(splits["train"]) + sum(statistics["dropped_from_train"].values())
    assert total == len(rows) - 100
    prepare_custom(tmp_path / "again", **settings, max_words=8)
    for file in (tmp_path / "out").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_given_splits_are_used_and_the_test_set_keeps_its_lines(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    rows = sentences(300)
    test = [*rows[:20], ("", ""), ("w1", ""), *rows[20:30]]
    statistics = prepare_custom(
        tmp_path / "out",
        source="aa",
        target="bb",
        train=store(tmp_path, "train", rows),
        valid=store(tmp_path, "valid", rows[30:50]),
        test=store(tmp_path, "test", test),
        limit=100,
    )
    assert read(tmp_path / "out", "test") == test
    assert read(tmp_path / "out", "valid") == rows[30:50]
    assert len(read(tmp_path / "out", "train")) == 100
    assert not set(read(tmp_path / "out", "train")) & set(rows[:50])
    assert statistics["dropped_from_train"]["held out"] >= 50
    assert "held out" in caplog.text


@pytest.mark.parametrize("limit", [None, 70, 10_000])
@pytest.mark.parametrize("tsv", [False, True])
def test_what_is_streamed_is_what_filter_and_draw_leave(tmp_path, tsv, limit, caplog):
    rows = sentences(200) + sentences(50) + [("", "x1"), ("w1", "x1 " * 40)] * 3
    given = sentences(20, seed=9)
    pairs = [Pair(a, b.strip(), str(i)) for i, (a, b) in enumerate(rows, 1) if a and b]
    held = [Pair(*row) for row in given]
    keep = TrainFilter(held, max_words=9, max_ratio=2)
    expected = draw(list(keep(pairs)), limit, 1)
    train = store(tmp_path, "train", rows)
    if tsv:
        train = [write(tmp_path / "t.tsv", "".join(f"{a}\t{b}\n" for a, b in rows))]
    statistics = prepare_custom(
        tmp_path / "out",
        source="aa",
        target="bb",
        train=train,
        valid=store(tmp_path, "valid", given[:10]),
        test=store(tmp_path, "test", given[10:]),
        limit=limit,
        max_words=9,
        max_ratio=2,
    )
    assert read(tmp_path / "out", "train") == [(p.source, p.target) for p in expected]
    assert (tmp_path / "out/train.keys").read_text().split() == [p.key for p in expected]
    dropped = statistics["dropped_from_train"]
    assert dropped.pop("over the limit") == sum(1 for _ in pairs) - len(expected) - sum(
        dropped.values()
    )
    assert dropped == keep.dropped and dropped["duplicate"] and dropped["too long"]
    assert "3 pairs with an empty side dropped" in caplog.text


def test_a_streamed_corpus_whose_sides_part_ways_is_said(tmp_path):
    rows = sentences(100)
    train = store(tmp_path, "t", rows)
    write(train[1], "".join(row[1] + "\n" for row in rows[:60] + rows[61:]))
    given = {n: store(tmp_path, n, sentences(5, seed=3)) for n in ("valid", "test")}
    with pytest.raises(TextError, match=r"100 lines and .* 99: .* shifted from about line 6\d"):
        prepare_custom(tmp_path / "o", source="aa", target="bb", train=train, **given)
    assert not (tmp_path / "o/train.aa").exists()


def test_lines_are_dealt_out_evenly(tmp_path):
    file = write(tmp_path / "f", "".join(f"{i}\n" for i in range(10)))
    parts = [tmp_path / f"part{i}" for i in range(3)]
    deal(file, parts)
    assert [part.read_text().split() for part in parts] == [list("0369"), list("147"), list("258")]
    with pytest.raises(TextError, match="has 10 lines, too few for 11 parts"):
        deal(file, [tmp_path / f"p{i}" for i in range(11)])
    assert not list(tmp_path.glob("p[0-9]*"))


def test_errors_of_custom_corpora(tmp_path):
    train = store(tmp_path, "t", sentences(100))
    languages = {"source": "aa", "target": "bb"}
    with pytest.raises(TextError, match=r"100 pairs, too few .* held_out to at most 25"):
        prepare_custom(tmp_path / "o", **languages, train=train, held_out=40)
    with pytest.raises(TextError, match=r"give .source file, target file."):
        prepare_custom(tmp_path / "o", **languages, train=[*train, *train])
    with pytest.raises(TextError, match="would clash"):
        prepare_custom(tmp_path / "o", source="aa", target="aa", train=train)
    with pytest.raises(TextError, match="left to train on"):
        prepare_custom(tmp_path / "o", **languages, train=train, valid=train, test=train)
    assert not (tmp_path / "o").exists()


def test_two_tables_are_not_two_languages(tmp_path):
    table = write(tmp_path / "a.tsv", "".join(f"Satz {i}\tsentence {i}\n" for i in range(20)))
    with pytest.raises(TextError, match=r"look like two tables.*cat a\.tsv b\.tsv"):
        load_parallel(table, table)
    # a tab here and there, in either, is text
    one = write(tmp_path / "one", "a\tb\nc\nd\n")
    two = write(tmp_path / "two", "x\ny\tz\nw\n")
    assert len(load_parallel(one, two)) == 3


def test_one_text_twice_is_no_parallel_text(tmp_path):
    text = write(tmp_path / "t.de", "".join(f"Satz {i}\n" for i in range(2000)))
    out = tmp_path / "out"
    for valid in ((), (text, text)):
        with pytest.raises(TextError, match="hold the same sentences"):
            prepare_custom(
                out, source="de", target="en", train=[text, text], valid=valid, held_out=10
            )
    # given valid and test sets, train is streamed: it is looked at all the same
    other = write(tmp_path / "v.en", "".join(f"Sentence {i}\n" for i in range(2000)))
    with pytest.raises(TextError, match=r"t\.de and .*t\.de hold the same"):
        prepare_custom(
            out,
            source="de",
            target="en",
            train=[text, text],
            valid=[text, other],
            test=[text, other],
        )
    # names and numbers are the same in many languages
    some = "".join(f"{'Sentence' if i % 2 else 'Satz'} {i}\n" for i in range(2000))
    assert len(load_parallel(write(tmp_path / "some", some), other)) == 2000


def test_a_line_of_column_names_is_no_pair(tmp_path, caplog):
    table = write(tmp_path / "a.tsv", "de\tEN\nein Satz\ta sentence\nde\ten\n")
    pairs = load_tsv(table, ("de", "en"))
    assert [(p.source, p.key) for p in pairs] == [("ein Satz", "2"), ("de", "3")]
    assert "line 1 names the columns" in caplog.text
    named = load_tsv(f"{table}#en,de", ("de", "en"))  # these are not its names
    assert len(named) == 3


def test_line_ends_of_old_macs(tmp_path):
    text = write(tmp_path / "mac", "one\rtwo\rthree\r")
    with pytest.raises(TextError, match=r"carriage returns.*tr '\\r' '\\n' <"):
        list(read_lines(text))


def test_how_a_letter_is_coded_does_not_hide_a_held_out_sentence():
    same = corpus.same_sentence
    decomposed = unicodedata.normalize("NFD", "Tôi yêu tiếng Việt.")
    assert decomposed != "Tôi yêu tiếng Việt."
    assert same(decomposed) == same("tôi yêu  tiếng Việt")
    assert same("ＡＢＣ１。") == same("abc1")
    # vowels that are marks are not punctuation; that without letters is its own key
    assert same("कि") != same("का")
    assert same("किताब") == same("किताब।")
    assert same("!") != same("?") != same("？")
    assert same("snake_case, x") == same("SNAKE_CASE x") != same("snake case x")
