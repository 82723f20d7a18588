"""Results that last: `results/RECIPE/*.json` become tables, and the README's tables with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments.bootstrap import RESAMPLES
from fairseq_fixed.experiments.errors import ExperimentError
from fairseq_fixed.experiments.names import METRIC_NAMES, markdown_table
from fairseq_fixed.experiments.results import SIGNIFICANCE, without_counts, without_tests
from fairseq_fixed.experiments.stamps import read_json, write_text
from fairseq_fixed.experiments.summary import summarise
from fairseq_fixed.experiments.tables import notes, table

__all__ = ["read_collection", "render_collection", "update_page"]

_BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def read_collection(folder: Path) -> dict[str, Any]:
    """Read what finished runs of one recipe left, in the shape of a run's report.

    Args:
        folder: `results/RECIPE`.

    Raises:
        ExperimentError: no results there, or a file that is none.
    """
    results: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*.json")):
        content = read_json(file)
        if file.name == SIGNIFICANCE:
            continue
        if content is None or "scores" not in content:
            raise ExperimentError(f"{file} is no result of a run")
        _check_settings(file, content, results)
        content["file"] = file
        results.append(content)
    if not results:
        raise ExperimentError(f"{folder} holds no results; fairseq-fixed run … results=results")
    significance = _tests_of_these(read_json(folder / SIGNIFICANCE), results)
    order = {slug: i for i, slug in enumerate((significance or {}).get("systems", []))}
    results.sort(key=lambda r: (order.get(r["slug"], len(order)), r["slug"], r["seed"]))
    alpha = (significance or {}).get("alpha", 0.05)
    baseline = (significance or {}).get("baseline", results[0]["slug"])
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


def _check_settings(file: Path, new: dict[str, Any], others: list[dict[str, Any]]) -> None:
    """Raise ExperimentError where a row would mix settings, or count a seed twice."""
    for other in others:
        if other["slug"] != new["slug"]:
            continue
        if other["settings_hash"] != new["settings_hash"] or other["seed"] == new["seed"]:
            raise ExperimentError(
                f"{other['file']} and {file} are both of the system {new['system']}, with other "
                "settings or the same seed; keep the one that is meant, and remove the other"
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


def render_collection(folder: Path) -> str:
    """Return the table of one recipe's results and what must be said of it, as Markdown."""
    report = read_collection(folder)
    machines = {
        f"{r['machine']['processor']}, {r['machine']['cores']} cores"
        + (f", {', '.join(r['machine']['gpus'])}" if r["machine"]["gpus"] else ", no GPU")
        for r in report["results"]
    }
    dates = sorted({r["date"] for r in report["results"]})
    lines = [
        *markdown_table(*table(report)),
        "",
        *(f"- {note}" for note in notes(report)),
        *(f"- {METRIC_NAMES.get(m, m)}: `{s}`" for m, s in report["signatures"].items()),
        f"- Machine: {'; '.join(sorted(machines))}; "
        f"{' to '.join(dict.fromkeys([dates[0], dates[-1]]))}. "
        f"Made by `fairseq-fixed run {report['recipe']} results=results`.",
    ]
    return "\n".join(lines) + "\n"


def update_page(page: Path, results: Path, *, write: bool = True) -> bool:
    """Put the tables between a page's marks, `<!-- results: RECIPE -->` to `<!-- /results -->`.

    Args:
        page: a Markdown file, such as the README.
        results: the folder `results`.
        write: whether to write the page, or only say whether it would change.

    Returns:
        Whether the page differed from the results.

    Raises:
        ExperimentError: a mark names a recipe without results.
    """
    before = page.read_text(encoding="utf-8")
    after = _BLOCK.sub(
        lambda m: f"{m[1]}\n{render_collection(results / m[2])}\n{m[3]}",
        before,
    )
    if write and after != before:
        write_text(page, after)
    return after != before
