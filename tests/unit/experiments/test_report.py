import json

import pytest

from fairseq_fixed.experiments import (
    counts,
    machine,
    paths,
    recipe,
    report,
    results,
    scoring,
    summary,
)
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.report_view import show
from fairseq_fixed.experiments.settings import settings_hash


def experiment(**changes):
    content = {"pair": "es-en", "data": {"kind": "sword"}, "samples": 2, "seeds": [1, 2], **changes}
    return recipe.check("test", content)


def fake_run(folder, exp, scores, p=0.01, since_best=0, too_long=0):
    """Write what a finished run leaves; `scores` by slug and seed, made up, without counts."""
    raw = folder / paths.RAW
    raw.mkdir(parents=True)
    for language in ("es", "en"):
        lines = [f"{language} sentence number {i} with words" for i in range(20)]
        (raw / f"test.{language}").write_text("\n".join(lines) + "\n")
    (raw / "test.keys").write_text("".join(f"Ruth 1:{i + 1}\n" for i in range(20)))
    for system in exp.systems:
        for seed in exp.recipe.seeds:
            place = folder / paths.seed_folder(system.slug, seed)
            place.mkdir(parents=True)
            (place / paths.HYPOTHESES).write_text(f"{system.name}\n" * 20)
            value = scores[system.slug][seed]
            (place / paths.SCORE).write_text(
                json.dumps({"bleu": {"score": value, "signature": "nrefs:1", "detail": ""}})
            )
            info = {
                "sentences": 20,
                "empty": 0,
                "too_long_source": list(range(too_long)),
                "too_long_reference": [],
            }
            (place / paths.HYPOTHESES_INFO).write_text(json.dumps(info))
            result = results.make_result(exp, system.slug, seed, folder)
            result["training"]["validations_since_best"] = since_best
            result["statistics"] = result["lengths"] = None
            (place / paths.RESULT).write_text(json.dumps(result))
    if exp.others:
        tests = {
            "tests": {
                "bootstrap": {"bleu": {s.slug: {"p": p} for s in exp.others}},
                "randomisation": {"bleu": {s.slug: {"p": p / 2} for s in exp.others}},
            },
            "signatures": {"bootstrap": {"bleu": "bs:1"}, "randomisation": {"bleu": "ar:1"}},
        }
        content = {
            "baseline": exp.baseline.slug,
            "seeds": {str(s): tests for s in exp.recipe.seeds},
        }
        (folder / paths.REPORT).mkdir()
        (folder / paths.SIGNIFICANCE).write_text(json.dumps(content))


SCORES = {"vanilla": {1: 10.0, 2: 12.0}, "7f-1l": {1: 13.0, 2: 14.0}}


def test_report_of_two_systems_and_two_seeds(tmp_path, capsys):
    exp = experiment()
    fake_run(tmp_path, exp, SCORES)
    markdown = report.write_report(exp, tmp_path).read_text()
    assert "| vanilla | 2 |  |  | 0 | * | 11.0 ± 1.4 | baseline |" in markdown
    assert "| 7f+1l | 2 |  |  | 0 | * | 13.5 ± 0.7 | +2.5 (p = 0.010) |" in markdown
    assert "It must be so with every seed" in markdown  # no counts a sentence were kept
    assert "2 seeds (1, 2): mean ± standard deviation" in markdown
    assert "not converged" in markdown
    assert markdown.count("| reference |") == 2 and "|  | Ruth 1:" in markdown
    assert "bs:1" in markdown and "torch" in markdown
    assert (tmp_path / "report/curves.png").stat().st_size > 1000
    content = json.loads((tmp_path / "report/report.json").read_text())
    assert [row["system"] for row in content["rows"]] == ["vanilla", "7f+1l"]
    show(tmp_path)
    printed = capsys.readouterr().out
    assert "13.5 ± 0.7" in printed
    assert "7f+1l against vanilla: BLEU +2.5 (p = 0.010)" in printed
    assert str(tmp_path / "report/report.md") in printed


def test_what_is_not_significant_is_called_that(tmp_path):
    exp = experiment()
    fake_run(tmp_path, exp, SCORES, p=0.2)
    text = report.write_report(exp, tmp_path).read_text()
    assert "+2.5 (not significant, p = 0.200)" in text


def test_one_seed_proves_nothing(tmp_path):
    exp = experiment(seeds=[1])
    fake_run(tmp_path, exp, SCORES, since_best=7, too_long=3)
    text = report.write_report(exp, tmp_path).read_text()
    assert "one seed proves nothing" in text
    assert "| 13.0 | +3.0 (p = 0.010) |" in text
    assert "not converged" not in text
    assert "vanilla, seed 1: 3 of 20 test sentences were too long" in text


def test_one_system_alone(tmp_path):
    exp = experiment(seeds=[1], systems=["7f+1l"])
    fake_run(tmp_path, exp, SCORES)
    text = report.write_report(exp, tmp_path).read_text()
    assert "Significance" not in text and "| 7f+1l |" in text


def test_an_unfinished_run(tmp_path):
    exp = experiment()
    fake_run(tmp_path, exp, SCORES)
    missing = tmp_path / paths.seed_folder("7f-1l", 2) / paths.RESULT
    missing.unlink()
    with pytest.raises(ExperimentError, match=f"{missing} is missing: the run is not finished"):
        report.write_report(exp, tmp_path)
    with pytest.raises(ExperimentError, match="there is no report"):
        show(tmp_path)


def test_a_report_of_settings_that_the_folder_no_longer_has(tmp_path):
    exp = experiment()
    fake_run(tmp_path, exp, SCORES)
    later = experiment(train={"lr": 0.001})
    with pytest.raises(ExperimentError, match=r"of other settings than recipe\.yaml"):
        report.build_report(later, tmp_path)


def test_a_difference_is_significant_only_with_every_seed():
    significance = {
        "seeds": {
            "1": {"tests": {"bootstrap": {"bleu": {"a": {"p": 0.01}}}}},
            "2": {"tests": {"bootstrap": {"bleu": {"a": {"p": 0.3}}}}},
        }
    }
    training = {
        "parameters": 5, "tokens_per_second": 1.0, "updates": 3, "valid_loss": 2.0,
        "validations_since_best": 0,
    }  # fmt: skip
    runs = [
        {"slug": slug, "system": slug, "seed": seed, "training": training,
         "scores": {"bleu": {"score": score}}}
        for slug, score in (("base", 1.0), ("a", 2.0)) for seed in (1, 2)
    ]  # fmt: skip
    rows = summary.summarise(runs, baseline="base", significance=significance, alpha=0.05)
    assert rows[1]["differences"]["bleu"]["significant"] is False
    assert rows[1]["differences"]["bleu"]["p"] == {"bootstrap": [0.01, 0.3]}


def test_results_are_collected_under_names_that_tell_settings_apart(tmp_path):
    exp = experiment()
    fake_run(tmp_path / "run", exp, SCORES)
    written = results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    assert len(written) == 4
    longer = experiment(train={"max_update": 5})
    assert settings_hash(exp, exp.systems[0]) != settings_hash(longer, longer.systems[0])
    more = experiment(seeds=[1, 2, 3], jobs=2)
    digest = settings_hash(exp, exp.systems[1])
    assert settings_hash(more, more.systems[1]) == digest
    assert written[-1].name == f"7f-1l.seed2.{digest}.json"
    content = json.loads(written[-1].read_text())
    assert content["scores"]["bleu"]["score"] == 14.0
    assert content["budget"]["max_update"] == exp.recipe.train.max_update
    assert {"machine", "versions", "commit", "curve", "settings_hash"} <= set(content)


def test_settings_that_came_later_do_not_change_the_hash():
    # These hashes name results that exist: a change would part them from later seeds.
    content = {
        "pair": "es-en",
        "data": {"kind": "custom", "train": ["all.tsv"], "held_out": 29},
        "subwords": {"size": 50},
        "model": {"layers": 1, "dim": 32, "ffn": 64, "heads": 8, "dropout": 0.1},
        "train": {
            "max_update": 40, "lr": 0.01, "warmup_updates": 20, "save_every": 5, "average": 3,
            "log_every": 5, "max_tokens": 1024,
        },
        "translate": {"beam": 2, "max_tokens": 2000},
        "score": {"bootstrap": 50, "trials": 100},
        "threads": 1,
    }  # fmt: skip
    exp = recipe.check("mini", content, files=False)
    assert [settings_hash(exp, s) for s in exp.systems] == ["73e20d794073", "9b85463f42f2"]
    content["train"]["tensorboard"] = True  # decides nothing
    exp = recipe.check("mini", content, files=False)
    assert settings_hash(exp, exp.systems[0]) == "73e20d794073"


def scored_run(folder, *, seeds=(1, 2)):
    """Write a run as an older version left it: real scores of translations, without counts."""
    exp = experiment(seeds=list(seeds))
    fake_run(folder, exp, {s.slug: dict.fromkeys(seeds, 0) for s in exp.systems})
    reference = [f"the cat number {i} sat on the mat beside dog {i % 7}" for i in range(20)]
    (folder / paths.RAW / "test.en").write_text("\n".join(reference) + "\n")
    (folder / paths.SUBWORDS).mkdir()
    for split in ("train", "test"):
        lines = [" ".join("x" * (i + 1)) for i in range(20)]
        (folder / paths.SUBWORDS / f"{split}.es").write_text("\n".join(lines) + "\n")
    metrics = scoring.make_metrics(["bleu"], "13a")
    for system in exp.systems:
        for seed in seeds:
            wrong = 2 + seed if system is exp.baseline else 8 + seed
            lines = [
                line.replace("mat", "rug") if i % wrong == 0 else line
                for i, line in enumerate(reference)
            ]
            place = folder / paths.seed_folder(system.slug, seed)
            (place / paths.HYPOTHESES).write_text("\n".join(lines) + "\n")
            result = json.loads((place / paths.RESULT).read_text())
            result["scores"] = scoring.score(lines, reference, metrics)
            del result["statistics"], result["lengths"]
            (place / paths.RESULT).write_text(json.dumps(result))
    return exp


def tree(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_results_of_an_older_version_get_their_counts_when_they_are_collected(tmp_path):
    exp = scored_run(tmp_path / "run")
    before = tree(tmp_path / "run")
    written = results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    assert tree(tmp_path / "run") == before
    for file in written:
        content = json.loads(file.read_text())
        place = tmp_path / "run" / paths.seed_folder(content["slug"], content["seed"])
        older = json.loads((place / paths.RESULT).read_text())
        assert content.keys() - older.keys() == {"lengths", "statistics"}
        assert {key: content[key] for key in older} == older
        assert [b["sentences"] for b in content["lengths"]["by_length"]] == [10, 10]
        table = counts.unpack(content["statistics"])["bleu"]
        metric = scoring.make_metrics(["bleu"], "13a")["bleu"]
        assert counts.score_of(metric, table.sum(0)) == content["scores"]["bleu"]["score"]


def test_translations_that_have_changed_since_are_noticed(tmp_path):
    exp = scored_run(tmp_path)
    (tmp_path / paths.seed_folder("vanilla", 2) / paths.HYPOTHESES).write_text("x\n" * 20)
    with pytest.raises(ExperimentError, match=r"seed2: bleu is .* have changed since"):
        results.complete(
            exp, tmp_path,
            json.loads((tmp_path / paths.seed_folder("vanilla", 2) / paths.RESULT).read_text()),
        )  # fmt: skip


def test_p_over_seeds_in_report_and_terminal(tmp_path, capsys):
    exp = scored_run(tmp_path)
    text = report.write_report(exp, tmp_path).read_text()
    assert "resamples sentences and seeds together (1,000 resamples)" in text
    assert "Of so few seeds as 2 that p is rough" in text
    assert "(p = 0.010)" not in text  # that of single seeds
    content = json.loads((tmp_path / "report/report.json").read_text())
    difference = content["rows"][1]["differences"]["bleu"]
    assert difference["over_seeds"]["seeds"] == [2, 2]
    assert difference["over_seeds"]["difference"] == pytest.approx(difference["mean"])
    assert difference["significant"] == (difference["over_seeds"]["p"] <= 0.05)
    assert not any("statistics" in r for r in content["results"])  # for people to read
    show(tmp_path)
    assert summary.describe_difference(difference) in capsys.readouterr().out


def test_one_seed_stays_with_the_tests_of_one_seed(tmp_path):
    exp = scored_run(tmp_path, seeds=[1])
    text = report.write_report(exp, tmp_path).read_text()
    assert "(p = 0.010)" in text and "paired bootstrap" in text
    assert "seeds together" not in text and "| seeds |" not in text


def test_an_unfinished_run_is_collected_so_far(tmp_path):
    exp = scored_run(tmp_path / "run")
    (tmp_path / "run" / paths.SIGNIFICANCE).unlink()
    (tmp_path / "run" / paths.seed_folder("7f-1l", 2) / paths.RESULT).unlink()
    written = results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    assert len(written) == 3
    significance = json.loads((tmp_path / "results/test/significance.json").read_text())
    assert significance["baseline"] == "vanilla" and significance["seeds"] == {}


def test_scored_anew_a_result_still_says_where_it_was_trained(tmp_path):
    exp = scored_run(tmp_path / "run")
    (written, *_) = results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    place = tmp_path / "run" / paths.seed_folder("vanilla", 1) / paths.RESULT
    trained = json.loads(place.read_text())
    again = {**trained, "commit": "later", "machine": {"processor": "other"}}
    place.write_text(json.dumps(again))
    results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    assert json.loads(written.read_text())["commit"] == trained["commit"]
    again["training"] = {**trained["training"], "updates": 7}  # another training
    place.write_text(json.dumps(again))
    results.collect_results(exp, tmp_path / "run", tmp_path / "results")
    assert json.loads(written.read_text())["commit"] == "later"


def test_nothing_about_host_or_user_is_kept(tmp_path):
    import getpass
    import platform

    text = json.dumps([machine.describe_machine(), machine.versions()])
    assert platform.node() not in text or len(platform.node()) < 3
    assert f"/{getpass.getuser()}" not in text


def test_names_in_brackets_are_shown_as_they_are(tmp_path, capsys):
    exp = experiment(systems=["vanilla", {"name": "8f [/old]", "heads": "8f"}], seeds=[1])
    slug = exp.systems[1].slug
    fake_run(tmp_path, exp, {"vanilla": {1: 10.0}, slug: {1: 11.0}})
    report.write_report(exp, tmp_path)
    show(tmp_path)
    assert "8f [/old]  " in capsys.readouterr().out
