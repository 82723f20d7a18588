"""Records and listeners for tests of the benchmark."""

from __future__ import annotations

from typing import Any

from fairseq_fixed.bench.statistics import ratio_spread, spread


class Silent:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.cases: list[dict[str, Any]] = []

    def doing(self, text: str) -> None:
        self.texts.append(text)

    def finished(self, case: dict[str, Any]) -> None:
        self.cases.append(case)


def make_case(
    length: int | str, samples: dict[str, list[float]], ours: set[str], **more: Any
) -> dict[str, Any]:
    """A case as `hold_contest` returns it, with these milliseconds a round."""
    case = {
        "length": length,
        "tokens": 64,
        "batches": 1,
        "sentences": 2,
        "positions": 64,
        "longest": length if isinstance(length, int) else 30,
        "padding": 0.1,
        "pass": "forward",
        "attention_dropout": 0.0,
        "width": 16,
        "heads": 8,
        "layers": 2,
        "dtype": "float32",
        "device": "cpu",
        "side": "left",
        "rounds": 3,
        "left_out": {},
        **more,
    }
    case["rows"] = [
        {
            "contender": name,
            "ours": name in ours,
            "ms": spread(times).as_dict(),
            "samples_ms": times,
            "repeats": [1],
            "peak_extra_bytes": int(1000 * times[0]),
        }
        for name, times in samples.items()
    ]
    case["ratios"] = [
        {"peer": peer, "ours": mine, **ratio_spread(samples[peer], samples[mine]).as_dict()}
        for mine in samples
        if mine in ours
        for peer in samples
        if peer != mine
    ]
    return case


def make_record(bench: str, cases: list[dict[str, Any]], **machine: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "bench": bench,
        "date": "2026-01-01",
        "command": f"fairseq-fixed bench {bench}",
        "settings": {"clock": "wall"},
        "machine": {"processor": "a cpu", "cores": 2, "threads": 1, "gpu": None, **machine},
        "versions": {"torch": "2", "fairseq": "0.12"},
        "commit": "abc",
        "memory_measured_by": "a method",
        "cases": cases,
    }
