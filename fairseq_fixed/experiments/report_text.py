"""A report as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairseq_fixed.experiments.differences import mark_markdown, plain_markdown
from fairseq_fixed.experiments.length_view import length_section
from fairseq_fixed.experiments.names import METRIC_NAMES, is_spaceless, markdown_table
from fairseq_fixed.experiments.signatures import signature_lines, signatures_of
from fairseq_fixed.experiments.speed import speed_section
from fairseq_fixed.experiments.tables import notes, table, trainings_section

__all__ = ["describe_machine", "render"]


def render(report: Mapping[str, Any], description: str = "") -> str:
    """Return the report as Markdown.

    Args:
        report: of `report.build_report`.
        description: a line below the title.
    """
    header, rows = table(report)
    lines = [f"# {report['recipe']}: {report['pair']}", ""]
    if description:
        lines += [description, ""]
    lines += markdown_table(header, rows)
    lines += ["", *(f"- {note}" for note in notes(report)), ""]
    lines += ["![learning curves](curves.png)", ""]
    lines += ["## Trainings", "", *trainings_section(report["results"])]
    baseline = next((row["slug"] for row in report["rows"] if row["baseline"]), "")
    if speed := speed_section(report["results"], baseline):
        lines += ["## Time to the baseline's best valid loss", "", *speed]
    if lengths := length_section(report["results"]):
        lines += ["## Length", "", *lengths, "![scores by length](lengths.png)", ""]
    lines += _translations(report)
    lines += ["## Signatures", ""]
    lines += signature_lines((r["system"], signatures_of(r)) for r in report["results"])
    if report["significance"] and report["significance"]["seeds"]:
        first = next(iter(report["significance"]["seeds"].values()))
        for test, by_metric in first["signatures"].items():
            lines += [f"- {test}, {METRIC_NAMES.get(m, m)}: `{s}`" for m, s in by_metric.items()]
    lines += ["", "## Made with", ""]
    lines += [f"- {name} {version}" for name, version in report["versions"].items()]
    commit = report["commit"]
    lines.append(f"- commit {commit}" if commit else "- no git clone: the commit is not known")
    boxes = [describe_machine(result["machine"]) for result in report["results"]]
    lines += [f"- {box}" for box in dict.fromkeys(boxes)]
    lines.append("- every command: `commands.sh`; every setting: `recipe.yaml`")
    return "\n".join(lines) + "\n"


def describe_machine(box: Mapping[str, Any]) -> str:
    """Return the machine of a result in words."""
    gpus = ", ".join(box["gpus"]) if box["gpus"] else "no GPU"
    memory = f"{box['memory_gib']} GiB"
    return f"{box['processor']}, {box['cores']} cores, {memory}, {box['system']}, {gpus}"


def _translations(report: Mapping[str, Any]) -> list[str]:
    if not report["samples"]:
        return []
    characters = is_spaceless(report["pair"].split("-")[-1])
    lines = ["## Translations", "", "Bold: what differs from the reference.", ""]
    for sample in report["samples"]:
        title = plain_markdown(sample["key"]) if sample["key"] else f"line {sample['line']}"
        reference = sample["reference"]
        rows = [
            ["source", plain_markdown(sample["source"])],
            ["reference", plain_markdown(reference)],
        ]
        rows += [
            [name, mark_markdown(text, reference, characters=characters) or "(empty)"]
            for name, text in sample["systems"].items()
        ]
        lines += [*markdown_table(["", title], rows, numbers=False), ""]
    return lines
