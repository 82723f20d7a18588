"""Published corpora: found in files, parts and archives; every recipe on a miniature of its own."""

import functools
import gzip
import http.server
import importlib.util
import io
import json
import logging
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairseq_fixed.cli import app
from fairseq_fixed.experiments import recipe as recipes
from fairseq_fixed.experiments import resources, stages
from fairseq_fixed.experiments.archives import Shelf, expand, join_words, sentences, unpack
from fairseq_fixed.experiments.errors import RecipeError
from fairseq_fixed.experiments.parallel_text import TextError
from fairseq_fixed.experiments.settings import settings_hash


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_tar(path: Path, members: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))


def text(language: str, split: str, count: int) -> str:
    return "".join(f"{split} {language} sentence {i} .\n" for i in range(count))


# ------------------------------------------------------------------ finding


def test_a_name_is_a_file_its_gzip_its_parts_or_a_member(tmp_path):
    write(tmp_path / "a.de", "a\n")
    write(tmp_path / "sub" / "b.de.gz", "b\n")
    for number in (2, 0, 1):
        write(tmp_path / f"c.de.00{number}", f"c{number}\n")
    write_tar(tmp_path / "d.tgz", {"d/d.de": "d\n", "d/dd.de": "no\n"})
    with zipfile.ZipFile(tmp_path / "e.zip", "w") as archive:
        archive.writestr("e-main/e.de.gz", gzip.compress(b"e\n"))
    shelf = Shelf(tmp_path)
    assert [str(i) for i in shelf.find("a.de")] == [str(tmp_path / "a.de")]
    assert [str(i) for i in shelf.find("b.de")] == [str(tmp_path / "sub/b.de.gz")]
    assert [i.name.rpartition("/")[2] for i in shelf.find("c.de")] == [
        "c.de.000", "c.de.001", "c.de.002",
    ]  # fmt: skip
    assert [str(i) for i in shelf.find("d.de")] == [f"{tmp_path / 'd.tgz'}, d/d.de"]
    out = tmp_path / "out"
    for name, expected in (
        ("a.LANG", "a\n"), ("b.LANG", "b\n"), ("c.LANG", "c0\nc1\nc2\n"), ("d.de", "d\n"),
        ("e.LANG", "e\n"),
    ):  # fmt: skip
        unpack(tmp_path, out, languages=("de",), splits={"test": [name]})
        assert (out / "test.de").read_text() == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"x.de": ""}, r"holds no a\.de, neither as a file, plain or \.gz, nor in parts"),
        ({"one/a.de": "", "two/a.de": ""}, r"has a\.de more than once: .*one.*two"),
        ({"a.de.000": "", "a.de.002": ""}, r"lacks a part of a\.de: a\.de\.001"),
        ({"a.de.001": "", "a.de.001.gz": ""}, r"part 1 of a\.de is there twice"),
        ({"a.tgz": "no archive"}, r"a\.tgz is damaged or no archive"),
        ({"a.zip": "no archive"}, r"a\.zip is damaged or no archive"),
    ],
)
def test_what_cannot_be_found(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(TextError, match=message):
        Shelf(tmp_path).find("a.de")


def test_the_folder_itself_comes_before_its_subfolders_and_a_folder_can_be_named(tmp_path):
    for name in ("a.de", "one/a.de", "two/a.de"):
        write(tmp_path / name, name)
    assert str(Shelf(tmp_path).find("a.de")[0]) == str(tmp_path / "a.de")
    assert str(Shelf(tmp_path).find("two/a.de")[0]) == str(tmp_path / "two/a.de")
    with pytest.raises(TextError, match="is not a folder"):
        Shelf(tmp_path / "a.de")


def test_a_truncated_archive_is_said(tmp_path):
    write_tar(tmp_path / "a.tgz", {"a.de": text("de", "a", 20_000)})
    whole = (tmp_path / "a.tgz").read_bytes()
    (tmp_path / "a.tgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TextError, match=r"a\.tgz.* is damaged.*Fetch it again"):
        unpack(tmp_path, tmp_path / "out", languages=("de",), splits={"train": ["a.de"]})
    assert not (tmp_path / "out" / "train.de").exists()


# ------------------------------------------------------------------ reading

TAGS = """\
<doc docid="1" genre="lectures">
<url>http://www.ted.com/talks/1</url>
<keywords>talks, {lang}</keywords>
<speaker>Someone</speaker>
<talkid>1</talkid>
<title>Title {lang}</title>
<description>About {lang} & more</description>
 First sentence {lang} 1 < 2.
Second sentence {lang}.
<reviewer></reviewer>
<translator href="http://x">Someone</translator>
</doc>
"""
XML = """\
<?xml version="1.0" encoding="UTF-8"?>
<mteval>
<{kind}set setid="{name}" srclang="german">
<doc docid="1" genre="lectures">
<title>Not a sentence</title>
<seg id="1"> {name} {lang} one &amp; all </seg>
<seg id="2">{name} {lang} two</seg>
</doc>
</{kind}set>
</mteval>
"""


def test_markup_of_iwslt(tmp_path):
    tags = write(tmp_path / "train.tags.de-en.de", TAGS.format(lang="de"))
    assert list(sentences(tags, markup=True)) == [
        "Title de", "About de & more", "First sentence de 1 < 2.", "Second sentence de.",
    ]  # fmt: skip
    xml = write(tmp_path / "tst.de.xml", XML.format(kind="src", name="tst", lang="de"))
    assert list(sentences(xml, markup=True)) == ["tst de one & all", "tst de two"]
    assert len(list(sentences(xml))) == 10
    two = write(tmp_path / "two.sgm", '<seg id="1">a</seg> <seg id="2"> b </seg>\n')
    assert list(sentences(two, markup=True)) == ["a", "b"]
    for text in ('<seg id="1">no end\n', '<seg id="1">a</seg> <seg id="2">b\n'):
        broken = write(tmp_path / "broken.xml", text)
        with pytest.raises(TextError, match=r"broken\.xml, line 1: a <seg> is not closed"):
            list(sentences(broken, markup=True))


@pytest.mark.parametrize(
    ("line", "joined"),
    [
        ("自分 の 事 を しろ 。", "自分の事をしろ。"),
        ("彼 は New York に 2 年 い た 。", "彼はNew Yorkに2年いた。"),
        ("", ""),
    ],
)
def test_words_are_joined_where_the_script_has_no_spaces(line, joined):
    assert join_words(line) == joined


def test_several_names_must_agree_each(tmp_path):
    for name, count in (("a.de", 2), ("a.en", 3), ("b.de", 3), ("b.en", 2)):
        write(tmp_path / name, text(name, "x", count))
    with pytest.raises(TextError, match=r"a\.LANG in .* has 2 sentences in de and 3 in en"):
        unpack(
            tmp_path,
            tmp_path / "out",
            languages=("de", "en"),
            splits={"train": ["a.LANG", "b.LANG"]},
        )


# ------------------------------------------------------------------ recipes


def miniature_multi30k(folder):
    for split, count in (("train", 60), ("val", 10), ("test_2016_flickr", 11)):
        for language in ("de", "en"):
            write(folder / f"{split}.{language}.gz", text(language, split, count))


def miniature_enja(folder):
    for language, word in (("ja", "語 が"), ("en", "word is")):
        for part in range(5):
            lines = [f"{word} {part} {i} .\n" for i in range(12)]
            write(folder / f"train.{language}.{part:03}", "".join(lines))
        write(folder / f"dev.{language}", "".join(f"{word} dev {i}\n" for i in range(10)))
        write(folder / f"test.{language}", "".join(f"{word} test {i}\n" for i in range(11)))


def miniature_iwslt14(folder):
    members = {}
    for lang, kind in (("de", "src"), ("en", "ref")):
        more = text(lang, "train", 120)
        members[f"de-en/train.tags.de-en.{lang}"] = TAGS.format(lang=lang) + more
        for name in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            content = XML.format(kind=kind, name=name, lang=lang)
            members[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"] = content
    write_tar(folder / "de-en.tgz", members)


def miniature_iwslt15(folder):
    for split, count in (("train", 60), ("tst2012", 10), ("tst2013", 11)):
        for language in ("en", "vi"):
            write(folder / f"{split}.{language}", text(language, split, count))


def sgm(kind: str, name: str, lang: str, count: int) -> str:
    segments = "".join(f'<seg id="{i}">{name} {lang} {i}</seg>\n' for i in range(1, count + 1))
    return (
        f'<{kind}set setid="{name}" srclang="any" trglang="{lang}">\n<doc sysid="{kind}" '
        f'docid="1" genre="news" origlang="en">\n<p>\n{segments}</p>\n</doc>\n</{kind}set>\n'
    )


def miniature_wmt19(folder):
    def rows(name, count):
        return "".join(f"{name} de {i} .\t{name} en {i} .\n" for i in range(count))

    # blank lines part News Commentary's documents; a line of Europarl has a tab too many
    europarl = rows("europarl", 40) + "nur deutsch\t\n" + "one\ttwo\tthree\n"
    write(folder / "europarl-v9.de-en.tsv.gz", europarl)
    commentary = rows("comment", 10) + "\t\n\n" + rows("more", 10)
    write(folder / "news-commentary-v14.de-en.tsv.gz", commentary)
    crawl = {"commoncrawl.de-en.annotation": "http://x\n"}
    for pair in ("cs", "de", "es", "fr", "ru"):
        for lang in (pair, "en"):
            far = "much " * 30 if lang == "en" else ""
            crawl[f"commoncrawl.{pair}-en.{lang}"] = text(lang, "crawl", 15) + f"last {far}\n"
    write_tar(folder / "training-parallel-commoncrawl.tgz", crawl)
    for archive, place, year, count in (("dev", "dev", 2018, 10), ("test", "sgm", 2019, 11)):
        members = {}
        for source, target in (("en", "de"), ("de", "en")):
            name = f"newstest{year}-{source}{target}"
            for kind, side, lang in (("src", "src", source), ("ref", "ref", target)):
                members[f"{place}/{name}-{side}.{lang}.sgm"] = sgm(kind, name, lang, count)
        write_tar(folder / f"{archive}.tgz", members)


def miniature_ko(folder):
    for split, count in (("train", 60), ("dev", 10), ("test", 11)):
        name = f"korean-english-park.{split}"
        members = {f"{name}.{lang}": text(lang, split, count) for lang in ("ko", "en")}
        write_tar(folder / f"{name}.tar.gz", members)


MINIATURES = {
    "multi30k": (miniature_multi30k, (60, 10, 11)),
    "small_parallel_enja": (miniature_enja, (60, 10, 11)),
    "iwslt14": (miniature_iwslt14, (104, 20, 10)),
    "iwslt15": (miniature_iwslt15, (60, 10, 11)),
    "ko": (miniature_ko, (60, 10, 11)),
    "wmt19_en_de_small": (miniature_wmt19, (20, 10, 11)),
    "wmt19_de_en_small": (miniature_wmt19, (20, 10, 11)),
    "wmt19": (miniature_wmt19, (75, 10, 11)),
}
ARCHIVE_RECIPES = [
    file.stem
    for file in recipes.recipe_files()
    if recipes.compose(file.stem)["data"].get("kind") == "archive"
]
PUBLISHED = [name for name in ARCHIVE_RECIPES if name != "multi30k_de_en_5k"]  # in full, that is


def overrides(name: str) -> list[str]:
    chosen = []
    if "_en_ja" in name:
        chosen.append("score.tokenize=char")  # ja-mecab is an extra of sacrebleu
    if name.startswith("iwslt14"):
        chosen.append("data.held_out=20")
    return chosen


def run_verb(stage) -> None:
    result = CliRunner().invoke(app, list(stage.argv[3:]))
    assert result.exit_code == 0, (result.output, result.exception)


def counts_of(folder: Path) -> tuple[int, ...]:
    splits = json.loads((folder / "statistics.json").read_text())["splits"]
    return tuple(splits[split]["pairs"] for split in ("train", "valid", "test"))


def test_every_published_corpus_has_both_sizes():
    assert len(PUBLISHED) == 20
    for name in PUBLISHED:
        assert name.removesuffix("_small") in PUBLISHED
        assert f"{name.removesuffix('_small')}_small" in PUBLISHED


@pytest.mark.parametrize("name", ARCHIVE_RECIPES)
def test_every_recipe_prepares_a_miniature_in_the_original_layout(name, tmp_path, monkeypatch):
    make, counts = next(value for key, value in MINIATURES.items() if name.startswith(key))
    make(tmp_path / "given")
    monkeypatch.chdir(tmp_path)
    experiment = recipes.load(name, [*overrides(name), "data.path=given"])
    plan = stages.compile_plan(experiment)
    names = [stage.name for stage in plan]
    assert names[:4] == ["options", "unpack", "corpus", "subwords"]
    assert plan["unpack"].inputs and all(Path(p).is_file() for p in plan["unpack"].inputs)
    run_verb(plan["unpack"])
    run_verb(plan["corpus"])
    assert counts_of(tmp_path / "data/raw") == counts
    source, target = experiment.recipe.source, experiment.recipe.target
    first = (tmp_path / f"data/raw/test.{source}").read_text().splitlines()[0]
    other = (tmp_path / f"data/raw/test.{target}").read_text().splitlines()[0]
    assert source in first or "語" in first or "word" in first
    assert (target in other or "語" in other or "word" in other) and first != other
    if "_en_ja" in name:
        assert other == "語がtest 0"


def test_the_small_recipes_are_for_one_core_and_converge():
    for name in PUBLISHED:
        recipe = recipes.load(name, overrides(name)).recipe
        small = name.endswith("_small")
        assert (recipe.model.layers, recipe.model.dim) == ((3, 128) if small else (6, 512))
        assert recipe.model.heads == 8
        assert recipe.train.max_hours == 0  # a limit in updates: all systems see the same
        assert (recipe.train.max_update == 5000) == small
        assert (recipe.train.patience == 5) == small


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def test_a_recipe_downloads_what_it_prepares(tmp_path, monkeypatch):
    miniature_multi30k(tmp_path / "site")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(
        "download_for_recipe", resources.data_folder() / "download.py"
    )
    download = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(download)
    handler = functools.partial(_Quiet, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        urls = [f"{base}/{n}.LANG.gz" for n in ("train", "val", "test_2016_flickr")]
        plan = stages.compile_plan(
            recipes.load("multi30k_en_de_small", [f"data.urls=[{','.join(urls)}]"])
        )
        assert plan["download"].argv[2] == f"{base}/train.en.gz"
        assert download.main([*plan["download"].argv[2:], "--cache", "cache"]) == 0
        server.shutdown()
    assert plan.needs(plan["unpack"]) == ("download",)
    assert plan.needs(plan["corpus"]) == ("unpack",)
    run_verb(plan["unpack"])
    run_verb(plan["corpus"])
    assert counts_of(tmp_path / "data/raw") == (60, 10, 11)


# ------------------------------------------------------------------ checks

CORPUS = {
    "pair": "de-en",
    "data": {"kind": "archive", "train": ["train.LANG"], "urls": ["https://example.org/a.tgz"]},
}


def errors_of(**data):
    content = {**CORPUS, "data": {**CORPUS["data"], **data}}
    with pytest.raises(RecipeError) as caught:
        recipes.check("test", content)
    return caught.value.errors


def test_wrong_data_is_said_all_at_once(tmp_path):
    errors = errors_of(
        train=["train.de"], urls=["example.org/a.tgz", "https://x.org/a#sha256=1"], join=["ja"]
    )
    assert len(errors) == 4
    assert "data.train: 'train.de' has no LANG in it" in errors[0]
    assert errors_of(train=["all.tsv#de,fr"]) == [
        "data.train: 'all.tsv#de,fr' has no column for each of de and en"
    ]
    assert "data.urls: 'example.org/a.tgz' is not an address" in errors[1]
    assert "data.urls: 'https://x.org/a#sha256=1' is not an address" in errors[2]
    assert "data.join: 'ja' is neither of de and en" in errors[3]
    (error,) = errors_of(urls=[], valid=["dev.LANG"])
    assert "Name the folder that holds train.de, train.en, dev.de, dev.en: data.path=DIR" in error
    (error,) = errors_of(path=str(tmp_path / "none"))
    assert "data.path: " in error and "is not a folder" in error
    write(tmp_path / "train.de", "x\n")
    (error,) = errors_of(path=str(tmp_path))
    assert f"data.path: {tmp_path} holds no train.en" in error


def test_where_the_files_come_from_decides_no_result(tmp_path):
    for language in ("de", "en"):
        write(tmp_path / f"train.{language}", "x\n")
    given = {**CORPUS, "data": {**CORPUS["data"], "path": str(tmp_path)}}
    other = {**CORPUS, "data": {**CORPUS["data"], "markup": True}}
    digests = []
    for content in (CORPUS, given, other):
        experiment = recipes.check("test", content)
        digests.append(settings_hash(experiment, experiment.systems[0]))
    assert digests[0] == digests[1] != digests[2]


def test_languages_fill_names_in_order():
    assert expand(["a.LANG", "b"], ["de", "en"]) == ["a.de", "a.en", "b"]
    assert expand(["n-SOURCETARGET-SIDE.LANG.sgm"], ["de", "en"]) == [
        "n-deen-src.de.sgm", "n-deen-ref.en.sgm",
    ]  # fmt: skip


def test_a_table_gives_each_language_its_column(tmp_path, caplog):
    write(tmp_path / "t.tsv.gz", "k\tone\teins\n\n" + "k\ttwo\tzwei\n" * 30 + "k\tthree\n")
    names = {"train": ["t.tsv#key,en,de"]}
    with caplog.at_level(logging.WARNING):
        unpack(tmp_path, tmp_path / "out", languages=("de", "en"), splits=names)
    assert (tmp_path / "out/train.de").read_text() == "eins\n\n" + "zwei\n" * 30 + "\n"
    assert (tmp_path / "out/train.en").read_text() == "one\n\n" + "two\n" * 30 + "\n"
    assert "1 lines with more or fewer tabs left out" in caplog.text
    with pytest.raises(TextError, match=r"31 of 33 lines have not 2 columns between tabs \(en, de"):
        unpack(
            tmp_path, tmp_path / "out", languages=("de", "en"), splits={"train": ["t.tsv#en,de"]}
        )


def test_sgm_is_markup_and_what_is_neither_is_plain(tmp_path):
    file = write(tmp_path / "n-src.de.sgm", sgm("src", "n", "de", 2))
    assert list(sentences(file, markup=True)) == ["n de 1", "n de 2"]
    plain = write(tmp_path / "plain.de", "<url>kept</url>\n<seg kept\n")
    assert list(sentences(plain, markup=True)) == ["<url>kept</url>", "<seg kept"]


def test_what_was_read_is_logged(tmp_path, caplog):
    write(tmp_path / "a.de.gz", "x\n")
    with caplog.at_level(logging.INFO):
        unpack(tmp_path, tmp_path / "out", languages=("de",), splits={"train": ["a.LANG"]})
    assert f"de: {tmp_path / 'a.de.gz'}" in caplog.text
