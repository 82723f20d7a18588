"""Interleaved timing: every contender once a round, in an order drawn anew."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

__all__ = ["CLOCKS", "Samples", "Timed", "clock", "interleave"]

Clock = Callable[[Callable[[], object], int], float]

#: a timing is no shorter than this, or the clock and the scheduler would be what is measured
LEAST_SECONDS = 0.005


@dataclass(frozen=True)
class Timed:
    """What is timed under a name: one unit of work a batch."""

    name: str
    units: Sequence[Callable[[], object]]


@dataclass
class Samples:
    """What was measured.

    Attributes:
        seconds: by contender, one figure a round: the sum over batches of a unit's time.
        repeats: by contender, how often a unit ran within one timing, one figure a batch.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    repeats: dict[str, list[int]] = field(default_factory=dict)


CLOCKS = ("wall", "cpu")


def clock(device: str, kind: str = "wall") -> Clock:
    """Return the function (unit, repeats) -> seconds of a device.

    Args:
        device: on CUDA its events tell the time, whatever `kind` says.
        kind: on the CPU: `wall`, what a user waits; or `cpu`, the process's processor time, which
            does not see that other processes had the processor. For busy machines, and for one
            thread: several are added up, waiting for one another included.
    """
    if torch.device(device).type == "cuda":
        return _cuda_seconds
    return _cpu_seconds if kind == "cpu" else _wall_seconds


def _cpu_seconds(unit: Callable[[], object], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        unit()
    return time.process_time() - start


def _wall_seconds(unit: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        unit()
    return time.perf_counter() - start


def _cuda_seconds(unit: Callable[[], object], repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        unit()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def interleave(
    contenders: Sequence[Timed],
    *,
    clock: Clock,
    rounds: int,
    seconds: float = math.inf,
    minimum_rounds: int = 3,
    least: float = LEAST_SECONDS,
    seed: int = 0,
    on_round: Callable[[int, int], None] = lambda done, total: None,
) -> Samples:
    """Time contenders against one another.

    After a warm-up that also finds how often each unit must run for a timing of at least `least`
    seconds, every round times all contenders on the first batch, then on the second, and so on,
    each time in an order drawn anew. The garbage collector rests meanwhile.

    Args:
        contenders: with as many units each, one a batch.
        clock: of :func:`clock`.
        rounds: how many, at most.
        seconds: no round begins later than this after the first, but for `minimum_rounds`.
        minimum_rounds: how many, at least; fewer where `rounds` says so.
        least: shortest timing.
        seed: of the orders.
        on_round: called with the rounds done and how many there are.
    """
    samples = Samples(
        {c.name: [] for c in contenders},
        {c.name: [_calibrate(unit, clock, least) for unit in c.units] for c in contenders},
    )
    order = random.Random(seed)
    begin = time.monotonic()
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for done in range(rounds):
            if done >= minimum_rounds and time.monotonic() - begin > seconds:
                break
            for name, total in _round(contenders, samples.repeats, clock, order).items():
                samples.seconds[name].append(total)
            on_round(done + 1, rounds)
    finally:
        if collecting:
            gc.enable()
    return samples


def _round(
    contenders: Sequence[Timed], repeats: dict[str, list[int]], clock: Clock, order: random.Random
) -> dict[str, float]:
    totals = dict.fromkeys((c.name for c in contenders), 0.0)
    for batch in range(len(contenders[0].units)):
        for contender in order.sample(list(contenders), len(contenders)):
            count = repeats[contender.name][batch]
            totals[contender.name] += clock(contender.units[batch], count) / count
    return totals


def _calibrate(unit: Callable[[], object], clock: Clock, least: float) -> int:
    """Warm up; return how often the unit must run to take `least` seconds."""
    clock(unit, 1)
    repeats = 1
    while (taken := clock(unit, repeats)) < least:
        # a first guess may be far off: the clock's own cost, caches that were cold
        repeats = max(2 * repeats, min(math.ceil(1.1 * repeats * least / max(taken, 1e-9)), 10_000))
        if repeats >= 10_000:
            break
    return repeats
