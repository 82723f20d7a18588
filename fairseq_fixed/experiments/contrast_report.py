"""Contrastive scores of one or several models, as Markdown, JSON and a table of single scores."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_fixed.experiments.contrast import Judgement
from fairseq_fixed.experiments.names import markdown_table

__all__ = ["render", "render_scores"]


def render(report: Mapping[str, Any]) -> str:
    """Return a report as Markdown.

    Args:
        report: `file`, `score` (`mean` or `sum`), and `models`: each with `system`, `seed` (None:
            a checkpoint without a run) and what `contrast.tally` counted.
    """
    models = report["models"]
    several = any(m["sentences"]["total"] != m["pairs"]["total"] for m in models)
    header = ["", "pairs", "right", "accuracy", "95 % interval"]
    header += ["whole sentences"] if several else []
    rows = []
    for model in models:
        share = model["pairs"]
        row = [_name(model), f"{share['total']:,}", f"{share['right']:,}"]
        row += [_percent(share), _interval(share)]
        rows.append(row + ([_percent(model["sentences"])] if several else []))
    lines = [f"# {report['file']}", "", *markdown_table(header, rows), "", *_seeds(models)]
    how = "mean a subword" if report["score"] == "mean" else "sum"
    lines.append(f"- Right: the reference has a higher log-probability ({how}) than the variant.")
    if several:
        lines.append("- Whole sentences: it has a higher one than all variants of its sentence.")
    lines += _left_out(models)
    systems = _by_system(models)
    for key, title in (("by_type", "error"), ("by_distance", "distance in words")):
        found = dict.fromkeys(name for model in models for name in model[key])
        if found:
            body = [
                [name, f"{_total(models, key, name):,}"]
                + [
                    _cell([m[key][name] for m in seeds if name in m[key]])
                    for seeds in systems.values()
                ]
                for name in found
            ]
            lines += ["", *markdown_table([title, "pairs", *systems], body)]
    return "\n".join(lines) + "\n"


def _by_system(models: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    systems: dict[str, list[Mapping[str, Any]]] = {}
    for model in models:
        systems.setdefault(model["system"], []).append(model)
    return systems


def _seeds(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each system with several seeds."""
    return [
        f"- {system}: {_cell([model['pairs'] for model in seeds])} over {len(seeds)} seeds (mean ± "
        "standard deviation)."
        for system, seeds in _by_system(models).items()
        if len(seeds) > 1
    ]


def _left_out(models: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for model in models:
        if model["too_long"]:
            lines.append(
                f"- {_name(model)}: left out, being longer than the model's positions: "
                f"{model['too_long']:,}."
            )
        if model["ties"]:
            lines.append(
                f"- {_name(model)}: equal scores, counted as wrong: {model['ties']:,}. Variants "
                "that differ in unknown characters alone are the same to the model."
            )
    return lines


def _total(models: Sequence[Mapping[str, Any]], key: str, name: str) -> int:
    return max(model[key][name]["total"] for model in models if name in model[key])


def _name(model: Mapping[str, Any]) -> str:
    return model["system"] if model["seed"] is None else f"{model['system']}, seed {model['seed']}"


def _percent(share: Mapping[str, Any]) -> str:
    return "" if share["accuracy"] is None else f"{100 * share['accuracy']:.1f} %"


def _interval(share: Mapping[str, Any]) -> str:
    if share["interval"] is None:
        return ""
    low, high = share["interval"]
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _cell(shares: Sequence[Mapping[str, Any]]) -> str:
    """Return the accuracy of a system: of one seed with its interval, or of several their mean."""
    known = [100 * share["accuracy"] for share in shares if share["accuracy"] is not None]
    if not known:
        return ""
    if len(known) == 1:
        return f"{_percent(shares[0])} ({_interval(shares[0])})"
    return f"{statistics.mean(known):.1f} ± {statistics.stdev(known):.1f} %"


def render_scores(names: Sequence[str], judged: Sequence[Sequence[Judgement]]) -> str:
    """Return every pair's scores as a table with tabs: a line a pair, two columns a model.

    Args:
        names: of the models.
        judged: of each model, about the same test set.
    """
    head = ["source", "reference", "contrastive", "type", "distance"]
    head += [f"{name}: {side}" for name in names for side in ("reference", "contrastive")]
    lines = ["\t".join(head)]
    for same in zip(*judged, strict=True):
        item = same[0].item
        for i, wrong in enumerate(item.wrong):
            cells = [item.source, item.reference, wrong.text, wrong.type or ""]
            cells.append("" if wrong.distance is None else str(wrong.distance))
            for judgement in same:
                cells += [_number(judgement.reference), _number(judgement.wrong[i])]
            # A tab or a line's end within a text, which JSON may hold, would be one of the table.
            lines.append("\t".join(" ".join(cell.split()) for cell in cells))
    return "\n".join(lines) + "\n"


def _number(score: float | None) -> str:
    return "" if score is None else f"{score:.6f}"
