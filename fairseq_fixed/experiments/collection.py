"""Results that last: `results/RECIPE/*.json` become tables, and the README's tables with them."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import recipe, sweep_report
from fairseq_fixed.experiments.bootstrap import RESAMPLES
from fairseq_fixed.experiments.curves import draw_curves
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.length_view import draw_lengths, length_section
from fairseq_fixed.experiments.names import markdown_table
from fairseq_fixed.experiments.results import (
    FORMAT,
    SIGNIFICANCE,
    read_tests,
    without_counts,
    without_tests,
)
from fairseq_fixed.experiments.settings import as_overrides, flat_settings, flatten
from fairseq_fixed.experiments.signatures import signature_lines, signatures_of
from fairseq_fixed.experiments.speed import speed_section
from fairseq_fixed.experiments.stamps import read_json, write_text
from fairseq_fixed.experiments.summary import summarise
from fairseq_fixed.experiments.sweep_figure import draw as draw_sweep
from fairseq_fixed.experiments.systems import VANILLA
from fairseq_fixed.experiments.tables import notes, table, trainings_section
from fairseq_fixed.experiments.validation import nearest

__all__ = ["VIEWS", "draw_collection", "read_collection", "render_collection", "update_page"]

# what can be shown of a recipe's results
VIEWS = ("table", "trainings", "speed", "length")
_NEEDED = (  # of a result
    "format", "recipe", "pair", "system", "slug", "seed", "settings_hash", "test", "training",
    "curve", "machine", "date",
)  # fmt: skip
_MARK = re.compile(r"<!-- (/?)results(?:: ([^>]*?))? -->")
_BLOCK = re.compile(r"(<!-- results: ([\w.-]+)(?: +(\w+))? -->\n).*?(<!-- /results -->)", re.DOTALL)


def read_collection(folder: Path) -> dict[str, Any]:
    """Read what finished runs of one recipe left, in the shape of a run's report.

    Args:
        folder: `results/RECIPE`.

    Raises:
        ExperimentError: no results there, or a file that is none.
    """
    results: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*.json")):
        if file.name == SIGNIFICANCE:
            continue
        content = _read_result(file)
        _check_settings(file, content, results)
        content["file"] = file
        results.append(content)
    if not results:
        raise ExperimentError(f"{folder} holds no results; fairseq-fixed run … results=results")
    significance = _tests_of_these(read_tests(folder / SIGNIFICANCE), results)
    order = {slug: i for i, slug in enumerate((significance or {}).get("systems", []))}
    results.sort(key=lambda r: (order.get(r["slug"], len(order)), r["slug"], r["seed"]))
    alpha = (significance or {}).get("alpha", 0.05)
    slugs = [result["slug"] for result in results]
    usual = VANILLA if VANILLA in slugs else slugs[0]  # where no run has compared them yet
    baseline = (significance or {}).get("baseline", usual)
    name = next((r["system"] for r in results if r["slug"] == baseline), baseline)
    return {
        "recipe": results[0]["recipe"],
        "pair": results[0]["pair"],
        "baseline": name,
        "seeds": sorted({r["seed"] for r in results}),
        "alpha": alpha,
        "rows": summarise(
            results,
            baseline=baseline,
            significance=significance,
            alpha=alpha,
            resamples=(significance or {}).get("bootstrap", RESAMPLES),
        ),
        "signatures": {m: s["signature"] for m, s in results[0]["scores"].items()},
        "significance": significance,
        "results": [without_counts(result) for result in results],
    }


def _read_result(file: Path) -> dict[str, Any]:
    """Read a result, or say what is wrong with the file and what helps."""
    content = read_json(file)
    again = "fairseq-fixed collect RUN makes it again from the run's folder"
    if content is None:
        raise ExperimentError(f"{file} is not valid JSON: half written, or merged badly? {again}")
    if not isinstance(content, dict) or "scores" not in content:
        raise ExperimentError(f"{file} is no result of a run; move it out of the results")
    missing = [key for key in _NEEDED if key not in content]
    if missing:
        raise ExperimentError(f"{file} lacks {', '.join(missing)}; {again}")
    if content["format"] > FORMAT:
        raise ExperimentError(
            f"{file} was written by a later version of fairseq_fixed (format "
            f"{content['format']}, this one knows {FORMAT}); update this one"
        )
    return content


def _check_settings(file: Path, new: dict[str, Any], others: list[dict[str, Any]]) -> None:
    """Raise ExperimentError where a row would mix settings, or count a seed twice."""
    for other in others:
        if other["slug"] != new["slug"]:
            continue
        if other["settings_hash"] != new["settings_hash"] or other["seed"] == new["seed"]:
            raise ExperimentError(
                f"{other['file']} ({other['system']}) and {file} ({new['system']}) are both of the "
                f"system in the folder {new['slug']}, with other settings or the same seed; keep "
                "the one that is meant, and remove the other"
            )


def _tests_of_these(
    significance: dict[str, Any] | None, results: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """Return the tests without those of systems that had other settings; no baseline, no tests."""
    if significance is None:
        return None
    hashes = {result["slug"]: result["settings_hash"] for result in results}
    tested = significance["hashes"]
    base = significance["baseline"]
    if base in tested and hashes.get(base) != tested[base]:
        return {**significance, "seeds": {}}
    stale = {slug for slug in tested if hashes.get(slug) != tested[slug]}
    return {**significance, "seeds": without_tests(significance["seeds"], stale)}


def render_collection(folder: Path, view: str = "table") -> str:
    """Return one view of a recipe's results and what must be said of it, as Markdown.

    Args:
        folder: `results/RECIPE`.
        view: one of :data:`VIEWS`.

    Raises:
        ExperimentError: there are no results, the view is unknown, or they do not hold what it
            shows.
    """
    if view not in VIEWS:
        raise ExperimentError(f"results cannot be shown as {view!r}; {nearest(view, VIEWS)}")
    if (sweep := read_json(folder / sweep_report.JSON)) is not None:
        if view != "table":
            raise ExperimentError(
                f"{folder} holds a sweep, which has its table alone; each of its runs has a report "
                "in its own folder"
            )
        return "\n".join(sweep_report.section(sweep)) + "\n"
    report = read_collection(folder)
    if view == "table":
        return _render_table(report)
    results = report["results"]
    baseline = next((row["slug"] for row in report["rows"] if row["baseline"]), "")
    lines = {
        "trainings": lambda: trainings_section(results),
        "speed": lambda: speed_section(results, baseline),
        "length": lambda: length_section(results),
    }[view]()
    if not lines:
        raise ExperimentError(f"the results in {folder} hold nothing to be shown as {view}")
    return "\n".join(lines)


def draw_collection(folder: Path, out: Path) -> list[Path]:
    """Draw learning curves and scores by length of one recipe's results.

    Args:
        folder: `results/RECIPE`.
        out: folder for `RECIPE.curves.png` and, where results hold them, `RECIPE.length.png`.

    Returns:
        The files written.
    """
    if (sweep := read_json(folder / sweep_report.JSON)) is not None:
        picture = out / f"{folder.name}.png"
        return [picture] if draw_sweep(sweep, picture) else []
    report = read_collection(folder)
    baseline = next((row["slug"] for row in report["rows"] if row["baseline"]), None)
    title = f"{report['recipe']} ({report['pair']})"
    curves, lengths = (out / f"{folder.name}.{name}.png" for name in ("curves", "length"))
    draw_curves(report["results"], curves, title=title, baseline=baseline)
    return [curves, *([lengths] if draw_lengths(report["results"], lengths, title=title) else [])]


def _render_table(report: dict[str, Any]) -> str:
    machines = {
        f"{r['machine']['processor']}, {r['machine']['cores']} cores"
        + (f", {', '.join(r['machine']['gpus'])}" if r["machine"]["gpus"] else ", no GPU")
        for r in report["results"]
    }
    dates = sorted({r["date"] for r in report["results"]})
    lines = [
        *markdown_table(*table(report)),
        "",
        *(f"- {note}" for note in (*_other_settings(report), *notes(report))),
        *signature_lines((r["system"], signatures_of(r)) for r in report["results"]),
        f"- Machine: {'; '.join(sorted(machines))}; "
        f"{' to '.join(dict.fromkeys([dates[0], dates[-1]]))}. "
        f"Made by `{_command(report)}`, `systems` and `seeds` as in the table.",
    ]
    return "\n".join(lines) + "\n"


def _training_settings(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide a result's translations; of an older one those it states."""
    stated = {"model": result.get("model", {}), "train": result.get("budget", {})}
    return {
        key: value
        for key, value in (result.get("settings") or flatten(stated)).items()
        # how it was scored is told by signatures
        if not key.startswith("score.") and key not in ("train.tensorboard", "train.log_every")
    }


def _other_settings(report: Mapping[str, Any]) -> list[str]:
    """Return what must be said where systems were not trained and translated alike."""
    by_system: dict[str, Mapping[str, Any]] = {}
    for result in report["results"]:
        by_system.setdefault(result["system"], result)
    base = by_system.get(report["baseline"])
    if base is None:
        return []
    lines = []
    for name, result in by_system.items():
        ours, theirs = _training_settings(result), _training_settings(base)
        if not (result.get("settings") and base.get("settings")):  # what is known of both
            common = [key for key in ours if key in theirs]
            ours, theirs = ({key: known[key] for key in common} for known in (ours, theirs))
        own, usual = as_overrides(ours, theirs), as_overrides(theirs, ours)
        if own or usual:
            lines.append(
                f"{name} was not trained as {report['baseline']} was, and is not comparable: "
                f"{', '.join(own)}; {report['baseline']}: {', '.join(usual)}."
            )
    return lines


def _command(report: Mapping[str, Any]) -> str:
    """Return the command that makes a table's results, with what it changes of the recipe."""
    name = report["recipe"]
    words: Sequence[str] = ()
    stated = next((r["settings"] for r in report["results"] if r.get("settings")), None)
    if stated:
        # Of one's own recipe nothing is known here; `custom` is none without what is given to it;
        # and there may be no Hydra.
        with contextlib.suppress(ExperimentError):
            usual = recipe.check(name, recipe.compose(name), files=False, tools=False)
            words = as_overrides(stated, flat_settings(usual.recipe))
    return shlex.join(["fairseq-fixed", "run", name, *words, "results=results"])


def update_page(page: Path, results: Path, *, write: bool = True) -> bool:
    """Put the tables between a page's marks, `<!-- results: RECIPE -->` to `<!-- /results -->`.

    `<!-- results: RECIPE VIEW -->` stands for another view than the main table.

    Args:
        page: a Markdown file, such as the README.
        results: the folder `results`.
        write: whether to write the page, or only say whether it would change.

    Returns:
        Whether the page differed from the results.

    Raises:
        ExperimentError: the page cannot be read, its marks are not in pairs, or one names a recipe
            without results, or an unknown view.
    """
    try:
        before = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"cannot read {page}: {error}") from error
    _check_marks(page, before)
    after = _BLOCK.sub(
        lambda m: f"{m[1]}\n{render_collection(results / m[2], m[3] or 'table')}\n{m[4]}",
        before,
    )
    if write and after != before:
        write_text(page, after)
    return after != before


def _check_marks(page: Path, text: str) -> None:
    """Raise ExperimentError where a mark has no partner, or is not written as marks are."""
    open_at: int | None = None
    openings = {}
    for mark in _MARK.finditer(text):
        line = text.count("\n", 0, mark.start()) + 1
        closes = bool(mark[1])
        if closes != (open_at is not None):
            wrong = open_at if open_at is not None else line
            raise ExperimentError(
                f"{page}, line {wrong}: a mark without its partner. A table stands between "
                "<!-- results: RECIPE --> and <!-- /results -->"
            )
        open_at = None if closes else line
        if not closes:
            openings[mark.start()] = line
    if open_at is not None:
        raise ExperimentError(f"{page}, line {open_at}: no <!-- /results --> follows this mark")
    for block in _BLOCK.finditer(text):
        openings.pop(block.start())
    if openings:  # its table would stay as it is, whatever the results say
        raise ExperimentError(
            f"{page}, line {min(openings.values())}: a mark is <!-- results: RECIPE --> or "
            "<!-- results: RECIPE VIEW -->, with nothing behind it on its line"
        )
