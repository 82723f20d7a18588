import gc
import itertools
import math
from collections import Counter

import pytest

from fairseq_fixed.bench import timing
from fairseq_fixed.bench.timing import Timed, clock, interleave


class Machine:
    """A clock whose units take a known time, under a load that changes from round to round."""

    def __init__(self, costs):
        self.costs = costs  # seconds by unit
        self.calls = []
        self.load = 1.0

    def unit(self, name):
        return name

    def __call__(self, unit, repeats):
        self.calls.append((unit, repeats))
        return self.costs[unit] * repeats * self.load


def contenders(*names, batches=1):
    return [Timed(name, [f"{name}{b}" for b in range(batches)]) for name in names]


def test_every_round_runs_every_contender_once_on_every_batch():
    machine = Machine({f"{n}{b}": 1.0 for n in "xyz" for b in range(2)})
    rounds = []
    interleave(
        contenders(*"xyz", batches=2),
        clock=machine,
        rounds=4,
        on_round=lambda done, total: rounds.append((len(machine.calls), done, total)),
    )
    assert [(done, total) for _, done, total in rounds] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    starts = [rounds[0][0] - 6, *(calls for calls, _, _ in rounds)]
    orders = set()
    for begin, end in itertools.pairwise(starts):
        units = [unit for unit, _ in machine.calls[begin:end]]
        assert Counter(units) == Counter(f"{n}{b}" for n in "xyz" for b in range(2))
        assert [unit[1] for unit in units] == list("000111")  # a batch for all, then the next
        orders.add(tuple(units))
    assert len(orders) > 1  # not always the same one first


def test_a_rounds_figure_is_the_sum_over_batches_of_one_run():
    machine = Machine({"x0": 0.001, "x1": 0.02})
    samples = interleave(contenders("x", batches=2), clock=machine, rounds=3, least=0.005)
    assert samples.seconds["x"] == pytest.approx([0.021] * 3)
    assert samples.repeats["x"][1] == 1
    assert samples.repeats["x"][0] * 0.001 >= 0.005


def test_timings_are_long_enough_for_the_clock():
    machine = Machine({"fast0": 1e-5, "slow0": 1.0})
    warm = []
    samples = interleave(
        contenders("fast", "slow"),
        clock=machine,
        rounds=2,
        least=0.005,
        on_round=lambda *_: warm.append(len(machine.calls)),
    )
    measured = machine.calls[warm[0] - 2 :]
    assert all(machine.costs[unit] * repeats >= 0.005 for unit, repeats in measured)
    assert samples.repeats["slow"] == [1]


def test_a_unit_that_takes_no_time_does_not_warm_up_for_ever():
    assert interleave(contenders("x"), clock=lambda unit, repeats: 0.0, rounds=1).seconds == {
        "x": [0.0]
    }


def test_the_budget_ends_the_rounds_but_not_before_the_least(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])

    def slow(unit, repeats):
        now[0] += 10
        return 10.0

    def rounds(**limits):
        return len(interleave(contenders("x"), clock=slow, rounds=50, **limits).seconds["x"])

    assert rounds(seconds=35) == 4
    assert rounds(seconds=0, minimum_rounds=3) == 3
    assert rounds(seconds=0, minimum_rounds=80) == 50
    assert rounds(seconds=math.inf) == 50


def test_the_garbage_collector_rests_and_is_woken_even_by_an_error():
    seen = []

    def watch(done, total):
        seen.append(gc.isenabled())
        raise KeyboardInterrupt

    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt):
        interleave(contenders("x"), clock=lambda *_: 1.0, rounds=2, on_round=watch)
    assert seen == [False]
    assert gc.isenabled()


def test_clocks_run_the_unit_as_often_as_asked():
    for kind in timing.CLOCKS:
        runs = []
        assert clock("cpu", kind)(lambda runs=runs: runs.append(1), 5) >= 0
        assert len(runs) == 5


def test_processor_time_does_not_see_a_process_that_waits():
    pause = lambda: timing.time.sleep(0.2)  # noqa: E731
    assert clock("cpu", "cpu")(pause, 1) < 0.15
    assert clock("cpu", "wall")(pause, 1) >= 0.2
