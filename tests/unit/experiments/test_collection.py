import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairseq_fixed.cli import app
from fairseq_fixed.experiments import paths, report, results, tables
from fairseq_fixed.experiments.collection import (
    draw_collection,
    read_collection,
    render_collection,
    update_page,
)
from fairseq_fixed.experiments.errors import ExperimentError
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
    longer = experiment(systems=["7f+1l", "vanilla"], baseline="vanilla")
    fake_run(tmp_path / "later", longer, SCORES)
    (tmp_path / "later" / paths.SIGNIFICANCE).unlink()
    for seed in (1, 2):
        place = tmp_path / "later" / paths.seed_folder("7f-1l", seed) / paths.RESULT
        content = {**json.loads(place.read_text()), "settings_hash": "other"}
        place.write_text(json.dumps(content))
    for file in folder.glob("test/7f-1l.*.json"):
        file.unlink()
    results.collect_results(longer, tmp_path / "later", folder)
    rows = tables.table(read_collection(folder / "test"))[1]
    assert rows[1][-1] == "+2.5"


def test_errors(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(ExperimentError, match="holds no results"):
        read_collection(tmp_path / "none")
    (tmp_path / "none" / "x.json").write_text("{}")
    with pytest.raises(ExperimentError, match=r"x\.json is no result"):
        read_collection(tmp_path / "none")


def test_the_readmes_tables_are_what_the_results_say():
    assert not update_page(ROOT / "README.md", ROOT / "results", write=False)
