"""Cost against length: a contender's points over the cases of a record, and their exponents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_fixed.bench.statistics import Fit, fit_exponent

__all__ = ["FIT_FROM", "Curve", "Family", "families"]

#: fits begin at this length, unless told otherwise: below it projections rule
FIT_FROM = 512

#: what cases of one family have in common
_COMMON = (
    "pass",
    "attention_dropout",
    "dtype",
    "device",
    "width",
    "heads",
    "layers",
    "architecture",
    "vocabulary",
)


@dataclass(frozen=True)
class Curve:
    """A contender's costs by length, per sentence.

    Attributes:
        name: of the contender.
        ours: whether it is ours.
        lengths: ascending.
        seconds: a sentence, and a layer where sublayers were timed.
        bytes: peak extra memory a sentence; None where it was not measured.
    """

    name: str
    ours: bool
    lengths: Sequence[int]
    seconds: Sequence[float]
    bytes: Sequence[float | None]

    def fit(self, what: str, fit_from: float) -> Fit | None:
        """Fit the exponent of `seconds` or `bytes` in the length."""
        pairs = [
            (n, cost)
            for n, cost in zip(self.lengths, getattr(self, what), strict=True)
            if cost is not None
        ]
        return fit_exponent([n for n, _ in pairs], [cost for _, cost in pairs], fit_from=fit_from)


@dataclass(frozen=True)
class Family:
    """Cases that differ in their batches alone."""

    settings: Mapping[str, Any]
    cases: Sequence[Mapping[str, Any]]

    @property
    def title(self) -> str:
        """What the cases have in common, in words."""
        found = self.settings
        parts = [str(found["pass"])] if "pass" in found else []
        if "attention_dropout" in found:
            parts.append(f"attention dropout {found['attention_dropout']:g}")
        if "width" in found:
            parts.append(f"d = {found['width']}, {found['heads']} heads")
        if "architecture" in found:
            parts.append(f"{found['architecture']}")
        return ", ".join([*parts, *(str(found[n]) for n in ("dtype", "device") if n in found)])

    def contenders(self) -> dict[str, bool]:
        """Return all contenders, in order, and whether they are ours."""
        found: dict[str, bool] = {}
        for case in self.cases:
            for row in case["rows"]:
                found.setdefault(row["contender"], row["ours"])
        return dict(sorted(found.items(), key=lambda item: not item[1]))

    def curves(self) -> list[Curve]:
        """Return a curve a contender, over cases of one length each."""
        points: dict[str, dict[int, tuple[float, float | None]]] = {}
        for case in self.cases:
            if not isinstance(case["length"], int):
                continue
            for row in case["rows"]:
                sentences = case["sentences"]
                memory = row["peak_extra_bytes"]
                points.setdefault(row["contender"], {})[case["length"]] = (
                    row["ms"]["median"] / 1000 / sentences / case.get("layers", 1),
                    None if memory is None else memory / sentences,
                )
        curves = []
        for name, ours in self.contenders().items():
            if name in points:
                lengths = sorted(points[name])
                costs = [points[name][n] for n in lengths]
                curves.append(
                    Curve(name, ours, lengths, [c[0] for c in costs], [c[1] for c in costs])
                )
        return curves


def families(cases: Iterable[Mapping[str, Any]]) -> list[Family]:
    """Sort cases into families, in order."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for case in cases:
        key = tuple((name, case[name]) for name in _COMMON if name in case)
        found.setdefault(key, []).append(case)
    return [Family(dict(key), cases) for key, cases in found.items()]
