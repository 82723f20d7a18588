"""What a sweep found: one table over all points, and a figure of the scores by the swept keys.

`sweep.json` holds all that the other two are made of, so that they can be made again from it alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_fixed.experiments import paths
from fairseq_fixed.experiments.failures import in_a_line
from fairseq_fixed.experiments.names import markdown_table
from fairseq_fixed.experiments.report_text import describe_machine
from fairseq_fixed.experiments.signatures import signature_lines
from fairseq_fixed.experiments.stages import compile_plan
from fairseq_fixed.experiments.stamps import Stamps, read_json, write_json, write_text
from fairseq_fixed.experiments.sweep import Sweep, short_keys
from fairseq_fixed.experiments.sweep_figure import constant, draw, finished, shown
from fairseq_fixed.experiments.tables import notes, table

__all__ = ["FIGURE", "JSON", "MARKDOWN", "build", "render", "rows", "section", "write"]

JSON, MARKDOWN, FIGURE = "sweep.json", "sweep.md", "sweep.png"
_KEPT = (  # of a run's report; its translations and curves stay in the run's folder
    "recipe", "pair", "baseline", "seeds", "alpha", "rows", "signatures", "significance",
)  # fmt: skip


def write(sweep: Sweep, failures: Mapping[Path, Exception] | None = None) -> Path:
    """Write the table and the figure of what is finished of a sweep into its folder.

    Where the recipe names a folder for results, `sweep.json` goes there, too: `results/SWEEP/`.

    Args:
        sweep: the points.
        failures: by folder, what went wrong.

    Returns:
        The Markdown file.
    """
    content = build(sweep, failures or {})
    write_json(sweep.folder / JSON, content)
    if results := sweep.points[0].experiment.recipe.results:
        write_json(Path(results).expanduser() / sweep.name / JSON, content)
    figure = sweep.folder / FIGURE
    if not draw(content, figure):
        figure.unlink(missing_ok=True)
    page = sweep.folder / MARKDOWN
    write_text(page, render(content, figure=figure.name if figure.exists() else None))
    return page


def build(sweep: Sweep, failures: Mapping[Path, Exception]) -> dict[str, Any]:
    """Return a sweep's points and what their reports say, as plain data."""
    first = sweep.points[0].experiment
    points = []
    for point in sweep.points:
        folder = sweep.folder / point.name
        failed = failures.get(folder)
        states = Stamps(folder).survey(compile_plan(point.experiment), save=False)
        report = None
        if failed is None and states["report"].state == "done":
            report = read_json(folder / paths.REPORT / "report.json")
        points.append(
            {
                "name": point.name,
                "values": dict(point.values),
                "overrides": list(point.overrides),
                "state": "failed" if failed else "done" if report else "todo",
                "error": in_a_line(failed) if failed else "",
                "report": report and {key: report[key] for key in _KEPT},
                "results": [_result(result) for result in (report or {}).get("results", ())],
            }
        )
    return {
        "format": 1,
        "sweep": sweep.name,
        "recipe": sweep.recipe,
        "command": shlex.join(["fairseq-fixed", *sweep.command]),
        "description": first.recipe.description,
        "keys": list(sweep.keys),
        "metrics": list(first.recipe.score.metrics),
        "points": points,
    }


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells one model's settings and training from another's."""
    training = result["training"]
    return {
        "system": result["system"],
        "slug": result["slug"],
        "seed": result["seed"],
        "settings_hash": result["settings_hash"],
        "best_valid_loss": training["best_valid_loss"],
        "seconds": training["seconds"],
        "test": result["test"],
        "training": {"skipped_sentences": training["skipped_sentences"]},
        "machine": result["machine"],
        "date": result["date"],
    }


def rows(content: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table: the swept values, then a report's columns."""
    keys = list(short_keys(content["keys"]).values())
    same = constant(content)
    header: list[str] = []
    body: list[list[str]] = []
    once: dict[str, list[str]] = {}
    for point in content["points"]:
        values = [shown(point["values"][key]) for key in content["keys"]]
        if not point["report"]:
            body.append([*values, f"({point['state']})"])
            continue
        header, cells = table({**point["report"], "results": point["results"]})
        for row, line in zip(point["report"]["rows"], cells, strict=True):
            if row["slug"] in same:
                once.setdefault(row["slug"], [*("any" for _ in keys), *line])
                continue
            body.append([*values, *line])
    header = [*keys, *(header or ["system"])]
    body = [*once.values(), *body]
    return header, [[*row, *[""] * (len(header) - len(row))] for row in body]


def render(content: Mapping[str, Any], *, figure: str | None = None) -> str:
    """Return a sweep's page as Markdown.

    Args:
        content: of :func:`build`.
        figure: the name of its figure; None: there is none.
    """
    lines = [f"# {content['sweep']}", ""]
    if content["description"]:
        lines += [content["description"], ""]
    lines += section(content)
    if figure:
        names = ", ".join(short_keys(content["keys"]).values())
        lines += ["", f"![scores by {names}]({figure})"]
    names = ", ".join(f"`{point['name']}`" for point in content["points"])
    lines += ["", f"Reports of the points: `POINT/{paths.REPORT}/report.md`, POINT one of {names}."]
    return "\n".join(lines) + "\n"


def section(content: Mapping[str, Any]) -> list[str]:
    """Return a sweep's table and what must be said of it, as lines of Markdown."""
    lines = [*markdown_table(*rows(content)), ""]
    done = finished(content)
    said: list[str] = []
    for point in done:
        said += notes({**point["report"], "results": point["results"]})
    lines += [f"- {note}" for note in dict.fromkeys(said)]
    for point in content["points"]:
        if point["state"] == "failed":
            lines.append(f"- {point['name']} failed: {point['error']}")
    todo = sum(point["state"] == "todo" for point in content["points"])
    if todo:
        lines.append(f"- {todo} of {len(content['points'])} points are not finished yet.")
    if done:
        lines += signature_lines((point["name"], point["report"]["signatures"]) for point in done)
        results = [result for point in done for result in point["results"]]
        boxes = dict.fromkeys(describe_machine(result["machine"]) for result in results)
        dates = sorted({result["date"] for result in results})
        period = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
        lines.append(f"- Machine: {'; '.join(boxes)}; {period}. Made by `{content['command']}`.")
    return lines
