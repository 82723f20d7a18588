"""One case of a benchmark: contenders timed against one another, and what came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fairseq_fixed.bench.errors import BenchError
from fairseq_fixed.bench.memory import peak_extra_bytes
from fairseq_fixed.bench.statistics import ratio_spread, spread
from fairseq_fixed.bench.timing import CLOCKS, LEAST_SECONDS, Timed, clock, interleave

__all__ = ["Entrant", "Listener", "TimingOptions", "hold_contest"]

logger = logging.getLogger(__name__)

Work = Callable[[], object]


@dataclass(frozen=True)
class Entrant:
    """A contender of a case.

    Attributes:
        name: in tables.
        ours: whether peers are compared with it.
        units: what is timed, one a batch.
        memory: what peak memory is measured of, one a batch; the largest counts. None: of nothing.
        extra: what else to record of it.
        compared: whether it is a peer; otherwise it is timed for what follows from its time.
    """

    name: str
    ours: bool
    units: Sequence[Work]
    memory: Sequence[Work] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    compared: bool = True


@dataclass(frozen=True)
class TimingOptions:
    """How to measure: see :func:`timing.interleave` and :func:`timing.clock`.

    Raises:
        BenchError: an unknown clock.
    """

    rounds: int = 15
    seconds: float = 60.0
    minimum_rounds: int = 3
    least: float = LEAST_SECONDS
    seed: int = 1
    clock: str = "wall"

    def __post_init__(self) -> None:
        """Check."""
        if self.clock not in CLOCKS:
            raise BenchError(f"clock {self.clock!r}: it must be one of {', '.join(CLOCKS)}")


class Listener(Protocol):
    """Who is told how a benchmark goes."""

    def doing(self, text: str) -> None:
        """What is being done now; often."""

    def finished(self, case: dict[str, Any]) -> None:
        """A case is measured."""


def hold_contest(
    case: Mapping[str, Any],
    entrants: Sequence[Entrant],
    *,
    device: str,
    options: TimingOptions,
    listener: Listener,
    left_out: Mapping[str, str] | None = None,
    complete: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Time contenders and measure their memory.

    A peer that fails (a dtype it does not know, too little memory) is left out with its error as
    a note; what is ours must not fail.

    Args:
        case: what is the same for all: length, dtype, …
        entrants: the contenders.
        device: where they run.
        options: how long.
        listener: told of progress.
        left_out: by name, why a contender is not among them.
        complete: adds to the result what follows from its figures.

    Returns:
        `case` with `rows` (by contender: milliseconds, their spread, each round's figure, memory),
        `ratios` (peer / ours, by round) and `left_out`.
    """
    notes = dict(left_out or {})
    running = []
    for entrant in entrants:
        listener.doing(f"{entrant.name}: trying")
        try:
            for unit in entrant.units:
                unit()
        except (RuntimeError, NotImplementedError) as error:
            if entrant.ours and not isinstance(error, torch.OutOfMemoryError):
                raise
            notes[entrant.name] = _first_line(error)
            continue
        running.append(entrant)

    memory: dict[str, int] = {}
    for entrant in running:
        if entrant.memory is not None:
            listener.doing(f"{entrant.name}: memory")
            memory[entrant.name] = max(peak_extra_bytes(work, device) for work in entrant.memory)

    listener.doing("warming up")
    samples = interleave(
        [Timed(entrant.name, entrant.units) for entrant in running],
        clock=clock(device, options.clock),
        rounds=options.rounds if running else 0,
        seconds=options.seconds,
        minimum_rounds=options.minimum_rounds,
        least=options.least,
        seed=options.seed,
        on_round=lambda done, total: listener.doing(f"round {done} of {total}"),
    )
    rows = []
    for entrant in running:
        milliseconds = [float(f"{1000 * s:.5g}") for s in samples.seconds[entrant.name]]
        rows.append(
            {
                "contender": entrant.name,
                "ours": entrant.ours,
                "ms": spread(milliseconds).as_dict(),
                "samples_ms": milliseconds,
                "repeats": samples.repeats[entrant.name],
                "peak_extra_bytes": memory.get(entrant.name),
                **entrant.extra,
            }
        )
    ours = [entrant.name for entrant in running if entrant.ours]
    ratios = [
        {
            "peer": entrant.name,
            "ours": mine,
            **ratio_spread(samples.seconds[entrant.name], samples.seconds[mine]).as_dict(),
        }
        for mine in ours
        for entrant in running
        if entrant.name != mine and entrant.compared
    ]
    result = {
        **case,
        "rounds": len(samples.seconds[running[0].name]) if running else 0,
        "rows": rows,
        "ratios": ratios,
        "left_out": notes,
    }
    if complete is not None:
        complete(result)
    listener.finished(result)
    return result


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"
