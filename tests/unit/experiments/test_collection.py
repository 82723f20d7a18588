import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairseq_fixed.cli import app
from fairseq_fixed.experiments import paths, recipe, report, results, tables
from fairseq_fixed.experiments.collection import (
    draw_collection,
    read_collection,
    render_collection,
    update_page,
)
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.stages import compile_plan
from fairseq_fixed.experiments.stamps import Stamps
from tests.unit.experiments.test_report import SCORES, experiment, fake_run, scored_run

ROOT = Path(__file__).resolve().parents[3]


def collected(tmp_path, **kwargs):
    exp = experiment()
    fake_run(tmp_path / "run", exp, SCORES, **kwargs)
    results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    return exp, tmp_path / "results"


def test_collected_results_make_the_runs_own_table(tmp_path):
    exp, folder = collected(tmp_path)
    from_results = read_collection(folder / "test")
    from_run = report.build_report(exp, tmp_path / "run")
    assert tables.table(from_results) == tables.table(from_run)
    assert tables.notes(from_results) == tables.notes(from_run)
    assert from_results["baseline"] == "vanilla"


def test_the_table_grows_with_the_results(tmp_path):
    _, folder = collected(tmp_path)
    files = sorted(folder.glob("test/7f-1l.*.json"))
    assert len(files) == 2
    for file in files:
        file.unlink()
    assert "7f+1l" not in render_collection(folder / "test")


def test_a_table_without_its_baseline(tmp_path):
    _, folder = collected(tmp_path)
    for file in folder.glob("test/vanilla.*.json"):
        file.unlink()
    assert "| 7f+1l | 2 |" in render_collection(folder / "test")


def test_a_page_is_renewed_between_its_marks(tmp_path):
    _, folder = collected(tmp_path)
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- results: test -->\nold\n<!-- /results -->\nafter\n")
    assert update_page(page, folder, write=False)
    assert "old" in page.read_text()
    assert update_page(page, folder)
    text = page.read_text()
    assert text.startswith("before\n<!-- results: test -->\n\n| system |")
    assert text.endswith("<!-- /results -->\nafter\n")
    assert "old" not in text
    assert not update_page(page, folder)


def test_other_views_and_pictures(tmp_path):
    exp = scored_run(tmp_path / "run")
    results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    folder = tmp_path / "results"
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- results: test length -->\n<!-- /results -->\n"
        "<!-- results: test trainings -->\n<!-- /results -->\n"
        "<!-- results: test -->\n<!-- /results -->\n"
    )
    assert update_page(page, folder)
    length, trainings, table = page.read_text().split("<!-- /results -->\n")[:3]
    assert "| sentences |  | 10 | 10 |" in length
    assert "| vanilla | 2 |" in trainings and "ended by" in trainings
    assert "ΔBLEU" in table
    assert not update_page(page, folder)
    written = draw_collection(folder / "test", tmp_path / "pictures")
    assert [p.name for p in written] == ["test.curves.png", "test.length.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in written)
    with pytest.raises(ExperimentError, match="nothing to be shown as speed"):  # no curves
        render_collection(folder / "test", "speed")
    with pytest.raises(ExperimentError, match="cannot be shown as 'lengths'; did you mean"):
        render_collection(folder / "test", "lengths")


def test_the_verb_shows_all_results_or_one_recipes(tmp_path):
    _, folder = collected(tmp_path)
    for shown in (folder, folder / "test"):
        done = CliRunner().invoke(app, ["report", str(shown)])
        assert done.exit_code == 0
        assert done.stdout.startswith("## test\n\n| system |")
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(app, ["report", str(tmp_path / "empty")])
    assert isinstance(done.exception, ExperimentError)
    assert "neither a run nor results" in str(done.exception)


def test_rows_do_not_mix_settings(tmp_path):
    _, folder = collected(tmp_path)
    file = next(folder.glob("test/7f-1l.seed2.*.json"))
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "settings_hash": "other"}))
    with pytest.raises(ExperimentError, match=r"7f-1l\.seed1.*7f-1l\.seed2"):
        read_collection(folder / "test")
    file.write_text(json.dumps({**content, "seed": 1}))
    with pytest.raises(ExperimentError, match="the same seed"):
        read_collection(folder / "test")


def test_tests_of_other_settings_are_not_shown(tmp_path):
    _, folder = collected(tmp_path)
    for file in folder.glob("test/7f-1l.*.json"):
        content = json.loads(file.read_text())
        file.write_text(json.dumps({**content, "settings_hash": "other"}))
    rows = tables.table(read_collection(folder / "test"))[1]
    assert rows[1][-1] == "+2.5"


def test_a_later_run_adds_its_tests(tmp_path):
    _, folder = collected(tmp_path)
    later = experiment(systems=["vanilla", "8f"])
    fake_run(tmp_path / "later", later, {**SCORES, "8f": {1: 9.0, 2: 9.5}}, p=0.5)
    results.collect_results(later, tmp_path / "later", folder)
    rows = tables.table(read_collection(folder / "test"))[1]
    assert [row[0] for row in rows] == ["vanilla", "7f+1l", "8f"]
    assert rows[1][-1] == "+2.5 (p = 0.010)"
    assert rows[2][-1] == "-1.8 (not significant, p = 0.500)"


def test_seeds_of_separate_runs_are_tested_together(tmp_path):
    for seed in (1, 2, 3):  # three runs, on three machines
        exp = scored_run(tmp_path / f"run{seed}", seeds=[seed])
        results.collect_results(exp, tmp_path / f"run{seed}", tmp_path / "results")
    apart = render_collection(tmp_path / "results/test")
    exp = scored_run(tmp_path / "run", seeds=[1, 2, 3])
    results.collect_results(exp, tmp_path / "run", tmp_path / "at_once")
    assert apart == render_collection(tmp_path / "at_once/test")
    assert "| 7f+1l | 3 |" in apart
    assert "resamples sentences and seeds together" in apart
    rows = read_collection(tmp_path / "results/test")["rows"]
    assert rows[1]["differences"]["bleu"]["over_seeds"]["seeds"] == [3, 3]


def test_systems_without_counts_are_told_apart(tmp_path):
    exp = scored_run(tmp_path / "run")
    results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    for file in (tmp_path / "results/test").glob("7f-1l.*.json"):  # as an older version wrote it
        content = json.loads(file.read_text())
        del content["statistics"]
        later = {**content, "slug": "8f", "system": "8f"}
        file.with_name(f"8f.{content['seed']}.json").write_text(json.dumps(later))
    tests = json.loads((tmp_path / "results/test/significance.json").read_text())
    tests["hashes"]["8f"] = later["settings_hash"]
    for seed in tests["seeds"].values():
        for by_metric in seed["tests"].values():
            by_metric["bleu"]["8f"] = {"p": 0.02}
    (tmp_path / "results/test/significance.json").write_text(json.dumps(tests))
    text = render_collection(tmp_path / "results/test")
    assert "sentences and seeds together" in text
    assert "- 8f: significance against vanilla by paired bootstrap" in text
    assert "(p = 0.020)" in text


def test_a_run_under_way_does_not_keep_tests_of_its_older_settings(tmp_path):
    _, folder = collected(tmp_path)
    later = experiment(systems=["7f+1l", "vanilla"], baseline="vanilla", train={"lr": 0.1})
    fake_run(tmp_path / "later", later, SCORES)
    (tmp_path / "later" / paths.SIGNIFICANCE).unlink()
    for file in folder.glob("test/*.seed*.json"):
        file.unlink()
    results.collect_results(later, tmp_path / "later", folder)
    rows = {row[0]: row for row in tables.table(read_collection(folder / "test"))[1]}
    assert rows["7f+1l"][-1] == "+2.5" and rows["vanilla"][-1] == "baseline"


@pytest.mark.parametrize("again", ["vanilla", "8f"])
def test_tests_of_translations_that_were_replaced_do_not_stay(tmp_path, again):
    _, folder = collected(tmp_path)
    both = experiment(systems=["vanilla", "8f"])
    scores = {**SCORES, "8f": {1: 9.0, 2: 9.5}}
    fake_run(tmp_path / "both", both, scores, p=0.5)
    results.collect_results(both, tmp_path / "both", folder)

    def shown():
        rows = {row[0]: row[-1] for row in tables.table(read_collection(folder / "test"))[1]}
        return ["p = " in rows[name] for name in ("7f+1l", "8f")]

    assert shown() == [True, True]
    # on another machine the same settings give other scores
    scores = {**scores, again: {1: 8.0, 2: 8.5}}
    fake_run(tmp_path / "elsewhere", both, scores, p=0.5)
    results.collect_results(both, tmp_path / "elsewhere", folder)
    assert shown() == [again != "vanilla", True]
    fake_run(tmp_path / "third", both, {**scores, again: {1: 7.0, 2: 7.5}}, p=0.5)
    (tmp_path / "third" / paths.SIGNIFICANCE).unlink()  # trained, and not compared yet
    results.collect_results(both, tmp_path / "third", folder)
    assert shown() == [again != "vanilla", False]


def test_what_a_run_has_not_done_again_yet_is_left_out(tmp_path, caplog):
    exp = experiment()
    fake_run(tmp_path / "run", exp, SCORES)
    stamps = Stamps(tmp_path / "run")
    compare = compile_plan(exp)["compare"]
    stamps.start(compare)
    stamps.finish(compare, 1.0)
    results.collect_results(exp, tmp_path / "run", tmp_path / "before")
    assert tables.table(read_collection(tmp_path / "before/test"))[1][1][-1] == "+2.5 (p = 0.010)"

    # One system is trained again, and the tests are still those of the old translations.
    again = tmp_path / "run" / paths.seed_folder("7f-1l", 1) / paths.HYPOTHESES
    again.write_text("other\n" * 20)
    results.collect_results(exp, tmp_path / "run", tmp_path / "between")
    assert tables.table(read_collection(tmp_path / "between/test"))[1][1][-1] == "+2.5"

    # Tests written by hand since, or inputs tidied away: nothing is known against them.
    (tmp_path / "run" / paths.SIGNIFICANCE).touch()
    results.collect_results(exp, tmp_path / "run", tmp_path / "by_hand")
    assert tables.table(read_collection(tmp_path / "by_hand/test"))[1][1][-1] == "+2.5 (p = 0.010)"
    stamps.start(compare)  # under way
    results.collect_results(exp, tmp_path / "run", tmp_path / "under_way")
    assert tables.table(read_collection(tmp_path / "under_way/test"))[1][1][-1] == "+2.5"
    stamps.finish(compare, 1.0)
    again.unlink()
    results.collect_results(exp, tmp_path / "run", tmp_path / "tidied")
    assert tables.table(read_collection(tmp_path / "tidied/test"))[1][1][-1] == "+2.5 (p = 0.010)"

    # The recipe has changed, and nothing is trained with it yet.
    longer = experiment(train={"max_update": 77})
    assert results.collect_results(longer, tmp_path / "run", tmp_path / "after") == []
    assert "vanilla, seed 1: left out" in caplog.text
    assert not (tmp_path / "after").exists()


def test_other_signatures_are_not_compared(tmp_path):
    exp = scored_run(tmp_path / "run")
    results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    folder = tmp_path / "results/test"
    for file in folder.glob("7f-1l.*.json"):
        content = json.loads(file.read_text())
        bleu = content["scores"]["bleu"]
        bleu["signature"] = bleu["signature"].replace("version:", "version:0.")
        file.write_text(json.dumps(content))
    text = render_collection(folder)  # another version of sacrebleu: said, and compared
    assert "version:0." in text and "(vanilla), `nrefs:1" in text and "(7f+1l)" in text
    assert read_collection(folder)["rows"][1]["differences"]
    for file in folder.glob("7f-1l.seed2.*.json"):
        content = json.loads(file.read_text())
        bleu = content["scores"]["bleu"]
        bleu["signature"] = bleu["signature"].replace("tok:13a", "tok:char")
        file.write_text(json.dumps(content))
    text = render_collection(folder)
    assert not read_collection(folder)["rows"][1]["differences"]
    assert "7f+1l: no difference in BLEU: it was not scored as vanilla was" in text


def test_without_tests_vanilla_is_the_baseline(tmp_path):
    for name in ("7f+1l", "vanilla"):  # two runs of one system each compare nothing
        exp = experiment(systems=[name])
        fake_run(tmp_path / name, exp, SCORES)
        results.collect_results(exp, tmp_path / name, tmp_path / "results")
    assert read_collection(tmp_path / "results/test")["baseline"] == "vanilla"


def test_errors(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(ExperimentError, match="holds no results"):
        read_collection(tmp_path / "none")
    (tmp_path / "none" / "x.json").write_text("{}")
    with pytest.raises(ExperimentError, match=r"x\.json is no result"):
        read_collection(tmp_path / "none")


def test_damaged_results_are_named(tmp_path):
    _, folder = collected(tmp_path)
    file = next(folder.glob("test/7f-1l.seed2.*.json"))
    whole = file.read_text()
    file.write_text(whole[:100])
    with pytest.raises(ExperimentError, match=r"7f-1l.*is not valid JSON.*fairseq-fixed collect"):
        read_collection(folder / "test")
    content = json.loads(whole)
    del content["machine"], content["training"]
    file.write_text(json.dumps(content))
    with pytest.raises(ExperimentError, match="lacks training, machine"):
        read_collection(folder / "test")
    file.write_text(json.dumps({**json.loads(whole), "format": 99}))
    with pytest.raises(ExperimentError, match=r"format 99.*update"):
        read_collection(folder / "test")
    file.write_text(whole)
    tests = folder / "test" / results.SIGNIFICANCE
    for text in ("<<<<<<< HEAD\n{}", "{}", "[1]"):  # else another system became the baseline
        tests.write_text(text)
        with pytest.raises(ExperimentError, match=r"significance\.json is damaged"):
            read_collection(folder / "test")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("<!-- results: test -->\nold\n", 1),
        ("a\n<!-- results: test -->\nprose\n<!-- results: test -->\n<!-- /results -->\n", 2),
        ("a\nb\n<!-- /results -->\n", 3),
    ],
)
def test_marks_without_a_partner_change_nothing(tmp_path, text, line):
    _, folder = collected(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ExperimentError, match=rf"page\.md, line {line}: "):
        update_page(page, folder)
    assert page.read_text() == text
    with pytest.raises(ExperimentError, match=r"cannot read .*none\.md"):
        update_page(tmp_path / "none.md", folder)


def test_the_readmes_tables_are_what_the_results_say():
    for page in ("README.md", "docs/sweeps.md"):
        assert not update_page(ROOT / page, ROOT / "results", write=False)


def test_marks_that_are_written_otherwise_are_said(tmp_path):
    _, folder = collected(tmp_path)
    page = tmp_path / "page.md"
    good = "<!-- results: test -->\n<!-- /results -->\n"
    for mark in (
        "<!-- results: test --> ",
        "<!-- results: test length now -->",
        "<!-- results -->",
    ):
        page.write_text(f"{good}{mark}\nold\n<!-- /results -->\n")
        with pytest.raises(ExperimentError, match=r"page\.md, line 3: a mark is"):
            update_page(page, folder)


def test_a_sweep_has_one_view(tmp_path):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/sweep.json").write_text("{}")
    with pytest.raises(ExperimentError, match="holds a sweep, which has its table alone"):
        render_collection(tmp_path / "sweep", "speed")


def test_tests_of_seeds_that_the_table_lacks_are_not_shown(tmp_path):
    _, folder = collected(tmp_path)
    tests = json.loads((folder / "test/significance.json").read_text())
    for by_metric in tests["seeds"]["1"]["tests"].values():
        by_metric["bleu"]["7f-1l"]["p"] = 0.04
    (folder / "test/significance.json").write_text(json.dumps(tests))
    assert tables.table(read_collection(folder / "test"))[1][1][-1] == "+2.5 (p = 0.040)"
    for file in folder.glob("test/*.seed1.*.json"):
        file.unlink()
    assert tables.table(read_collection(folder / "test"))[1][1][-1] == "+2.0 (p = 0.010)"


def test_the_fewest_seeds_are_named(tmp_path):
    exp = scored_run(tmp_path / "run", seeds=[1, 2, 3])
    results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    next((tmp_path / "results/test").glob("7f-1l.seed3.*")).unlink()
    assert "Of so few seeds as 2 that p" in render_collection(tmp_path / "results/test")


def test_systems_of_other_settings_are_said(tmp_path):
    _, folder = collected(tmp_path)
    assert "not trained as" not in render_collection(folder / "test")
    for file in folder.glob("test/7f-1l.*.json"):
        content = json.loads(file.read_text())
        content["settings"] |= {"data.limit": "5k", "score.alpha": 0.1, "train.log_every": 7}
        content["settings"]["model.flags.some_option"] = True
        file.write_text(json.dumps(content))
    text = render_collection(folder / "test")
    assert (
        "- 7f+1l was not trained as vanilla was, and is not comparable: data.limit=5k, "
        "model.flags.some_option=true; vanilla: data.limit=null, ~model.flags.some_option." in text
    )
    for file in folder.glob("test/*.seed*.json"):  # as older versions wrote them
        content = json.loads(file.read_text())
        del content["settings"]
        file.write_text(json.dumps(content))
    assert "not trained as" not in render_collection(folder / "test")
    for file in folder.glob("test/7f-1l.*.json"):
        content = json.loads(file.read_text())
        content["model"]["dim"] = 640
        file.write_text(json.dumps(content))
    text = render_collection(folder / "test")
    assert "is not comparable: model.dim=640; vanilla: model.dim=" in text


def test_the_command_names_what_was_changed(tmp_path):
    changes = ["data.limit=5k", "train.lr=0.01", 'model.flags.some_option="a b"']
    exp = recipe.load("bible_es_en", [*changes, "seeds=[1,2]"])
    fake_run(tmp_path / "run", exp, SCORES)
    results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    text = render_collection(tmp_path / "results/bible_es_en")
    command = re.search("Made by `(.*)`, `systems`", text)[1]
    words = shlex.split(command)
    assert words[:3] == ["fairseq-fixed", "run", "bible_es_en"] and words[-1] == "results=results"
    assert set(words[3:-1]) == set(changes)


def test_the_table_of_ones_own_text(tmp_path):
    for side in ("de", "en"):
        (tmp_path / f"my.{side}").write_text("a\n")
    files = f"data.train=[{tmp_path}/my.de,{tmp_path}/my.en]"
    exp = recipe.load("custom", ["pair=de-en", files, "seeds=[1,2]"])
    fake_run(tmp_path / "run", exp, SCORES)
    for side in ("de", "en"):
        (tmp_path / f"run/data/raw/test.{side}").write_text("a\n" * 20)
    results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    text = render_collection(tmp_path / "results/custom")
    assert "Made by `fairseq-fixed run custom results=results`" in text
    assert str(tmp_path) not in next(tmp_path.glob("results/custom/*.seed1.*")).read_text()
