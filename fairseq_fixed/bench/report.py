"""Records as Markdown: ratios by length, memory, exponents, and where they were measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_fixed.bench.curves import FIT_FROM, Family, families
from fairseq_fixed.bench.limits import format_bytes
from fairseq_fixed.bench.tables import format_ms, format_ratio, left_out

__all__ = ["SECTIONS", "Chosen", "render_records"]

SECTIONS = ("speed", "cost", "memory", "exponents")


def render_records(
    records: Sequence[Mapping[str, Any]],
    *,
    fit_from: float = FIT_FROM,
    chosen: Chosen | None = None,
    show: Sequence[str] = SECTIONS,
) -> str:
    """Return the Markdown of records.

    Records of one benchmark and one machine are shown together: long sentences may have been
    measured apart.

    Args:
        records: of :func:`record.read_record`.
        fit_from: shortest length that exponents are fitted from.
        chosen: which contenders; None: all.
        show: which tables, of `SECTIONS`, of `attention` and `encoder`.
    """
    chosen = chosen or Chosen()
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        machine = record["machine"]
        key = (record["bench"], *(str(machine[n]) for n in ("processor", "gpu", "threads")))
        groups.setdefault(key, []).append(record)
    parts = []
    for (bench, *_), mine in groups.items():
        cases = [case for record in mine for case in record["cases"]]
        for family in families(cases):
            if bench == "step":
                parts.append(_step(family, chosen))
            elif bench == "generate":
                parts.append(_generate(family, chosen))
            else:
                parts.append(_by_length(family, chosen, fit_from, show))
        parts.append(_footer(mine, cases))
    return "\n".join(parts)


@dataclass(frozen=True)
class Chosen:
    """Which contenders to show.

    Attributes:
        mixes: of ours; None: all.
        peers: None: all. `dense` stands for `dense MIX`, and so on.
    """

    mixes: Collection[str] | None = None
    peers: Collection[str] | None = None

    def mix(self, name: str) -> bool:
        """Whether to show one of ours."""
        return self.mixes is None or name in self.mixes

    def peer(self, name: str) -> bool:
        """Whether to show a peer."""
        peer, _, mix = name.partition(" ")
        if mix and not self.mix(mix):
            return False
        return self.peers is None or name in self.peers or peer in self.peers


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "| " + " | ".join(header) + " |",
        "| --- |" + " ---: |" * (len(header) - 1),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _columns(family: Family) -> dict[str, Mapping[str, Any]]:
    """Return the cases by a heading that tells them apart."""
    columns: dict[str, Mapping[str, Any]] = {}
    lengths = [case["length"] for case in family.cases]
    for case in family.cases:
        length = case["length"]
        name = "real mix" if length == "real" else f"n = {length:,}"
        if lengths.count(length) > 1:
            name += f", {case['tokens']:,} tokens, padding {100 * case['padding']:.3g}%"
            name += f" {case['side']}" if case["padding"] else ""
        columns[name] = case  # measured again: the last counts
    return columns


def _belongs(peer: str, mix: str) -> bool:
    """Whether a peer is to be compared with a mix: `dense 8f` with `8f` alone."""
    _, space, of = peer.partition(" ")
    return not space or of == mix


def _by_length(family: Family, chosen: Chosen, fit_from: float, show: Sequence[str]) -> str:
    columns = _columns(family)
    contenders = family.contenders()
    ours = [name for name, mine in contenders.items() if mine and chosen.mix(name)]
    peers = [name for name, mine in contenders.items() if not mine and chosen.peer(name)]
    header = ["times as fast", *columns]
    rows, memory_rows = [], []
    for mix in ours:
        for peer in peers:
            if not _belongs(peer, mix):
                continue
            against = peer.partition(" ")[0] if " " in peer else peer
            rows.append(
                [f"{mix} against {against}"]
                + [_ratio(case, peer, mix) for case in columns.values()]
            )
            memory_rows.append(
                [f"{mix} against {against}"]
                + [_memory_ratio(case, peer, mix) for case in columns.values()]
            )
        limits = [_row(case, mix).get("counted_limit") for case in columns.values()]
        if any(limits):
            cells = ["" if limit is None else f"*{limit:.2f}*" for limit in limits]
            rows.append([f"*{mix}: counted limit against all heads learned*", *cells])
    shown = [*ours, *peers]
    costs = [[name, *(_cost(case, name) for case in columns.values())] for name in shown]
    exponents = _exponents(family, shown, fit_from)
    measured = any(cell for row in memory_rows for cell in row[1:])
    tables = {
        "speed": _table(header, rows),
        "cost": _table(["milliseconds a batch, peak extra memory", *columns], costs),
        "memory": _table(["memory: share of the peer's", *columns], memory_rows) * measured,
        "exponents": _table(
            [f"cost a sentence ∝ nˣ, from n = {fit_from:g}", "time", "memory"], exponents
        )
        * bool(exponents),
    }
    wanted = [text for name, text in tables.items() if name in show and text]
    return "\n".join([f"### {family.title}\n", *wanted])


def _row(case: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((row for row in case["rows"] if row["contender"] == name), {})


def _ratio(case: Mapping[str, Any], peer: str, mix: str) -> str:
    for ratio in case["ratios"]:
        if ratio["peer"] == peer and ratio["ours"] == mix:
            return format_ratio(ratio)
    return "–"


def _memory_ratio(case: Mapping[str, Any], peer: str, mix: str) -> str:
    mine, theirs = (_row(case, name).get("peak_extra_bytes") for name in (mix, peer))
    return f"{mine / theirs:.2g}" if mine and theirs else ""


def _cost(case: Mapping[str, Any], name: str) -> str:
    row = _row(case, name)
    if not row:
        return "left out" if name in case["left_out"] else "–"
    memory = row["peak_extra_bytes"]
    return format_ms(row["ms"]["median"]) + (f", {format_bytes(memory)}" if memory else "")


def _exponents(family: Family, shown: Sequence[str], fit_from: float) -> list[list[str]]:
    rows = []
    for curve in family.curves():
        if curve.name not in shown:
            continue
        fits = [curve.fit(what, fit_from) for what in ("seconds", "bytes")]
        if any(fits):
            rows.append([curve.name, *(f"{fit.exponent:.2f}" if fit else "–" for fit in fits)])
    return rows


def _step(family: Family, chosen: Chosen) -> str:
    rows = []
    for case in family.cases:
        for mix, saving in case["savings"].items():
            if not chosen.mix(mix):
                continue
            reached = saving.get("reached")
            rows.append(
                [
                    mix,
                    f"{case['tokens']:,}",
                    _ratio(case, "fairseq", mix),
                    f"{saving['measured']['median']:.1%}",
                    f"{saving['countable']['median']:.1%}",
                    format_ratio(reached) if reached else "–",
                    f"{saving['counted_share']:.1%}",
                    f"{saving['counted']:.1%}",
                ]
            )
    header = [
        "a training step",
        "tokens a batch",
        "times as fast as fairseq's",
        "saved",
        "countable",
        "saved / countable",
        "self-attention's share of multiply-adds",
        "of which spared",
    ]
    return f"### {family.title}\n\n" + _table(header, rows)


def _generate(family: Family, chosen: Chosen) -> str:
    parts = [f"### {family.title}\n"]
    for case in family.cases:
        contenders = [row["contender"] for row in case["rows"]]
        ours = [r["contender"] for r in case["rows"] if r["ours"] and chosen.mix(r["contender"])]
        rows = [
            [
                name,
                f"{_row(case, name)['sentences_per_second']:.3g}",
                *(_ratio(case, name, mix) if name != mix else "" for mix in ours),
                format_bytes(_row(case, name)["peak_extra_bytes"] or 0),
            ]
            for name in contenders
            if name in ours or not _row(case, name)["ours"]
        ]
        written = case.get("target_length")
        about = f"beam {case['beam']}, {case['sentences']} sentences" + (
            f", {written} tokens each" if written else ""
        )
        header = [about, "sentences/s", *(f"times {mix}'s time" for mix in ours), "memory"]
        parts.append(_table(header, rows))
    return "\n".join(parts)


def _footer(records: Sequence[Mapping[str, Any]], cases: Sequence[Mapping[str, Any]]) -> str:
    """Return where and how it was measured, and what was left out."""
    lines = []
    rounds = sorted({case["rounds"] for case in cases})
    if rounds:
        span = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        lines.append(
            f"- Medians of {span} rounds' ratios, quartiles in brackets; contenders take turns "
            "within a round."
            + (
                " Processor time, not wall time."
                if any(record["settings"].get("clock") == "cpu" for record in records)
                else ""
            )
        )
    layers = sorted({case["layers"] for case in cases if "layers" in case})
    if layers:
        number = ", ".join(map(str, layers))
        lines.append(
            f"- {number} sublayers a batch share its masks or layout; memory is of one sublayer."
        )
    paddings = {
        f"{'real mix' if c['length'] == 'real' else c['length']}: "
        f"{c['sentences']:,} × ≤ {c['longest']}, {100 * c['padding']:.3g}% padding": None
        for c in cases
        if "longest" in c
    }
    if paddings:
        lines.append(f"- Sentences: {'; '.join(paddings)}.")
    for how in dict.fromkeys(record["memory_measured_by"] for record in records):
        lines.append(f"- Memory: {how}.")
    reasons: dict[str, None] = {}
    for case in cases:
        for note, names in left_out(case["left_out"]).items():
            where = f" at {case['length']}" if "length" in case else ""
            reasons.setdefault(f"- Left out{where}: {', '.join(names)}: {note}.")
    lines += reasons
    for machine in dict.fromkeys(_machine(record) for record in records):
        lines.append(f"- {machine}")
    commands = dict.fromkeys(record["command"] for record in records)
    lines += [f"- `{command}`" for command in commands]
    return "\n".join(lines) + "\n"


def _machine(record: Mapping[str, Any]) -> str:
    machine, versions = record["machine"], record["versions"]
    where = machine["gpu"] or f"{machine['processor']}, {machine['cores']} cores"
    threads = machine["threads"]
    return (
        f"{where}, {threads} thread{'s' if threads > 1 else ''}; torch {versions['torch']}, "
        f"fairseq {versions['fairseq']}; {record['date']}, commit {record['commit']}."
    )
