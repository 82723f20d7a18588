import pytest
import torch
from bench_common import Silent

from fairseq_fixed.bench.contest import Entrant, TimingOptions, hold_contest
from fairseq_fixed.bench.errors import BenchError

OPTIONS = TimingOptions(rounds=4, least=0.0)


def hold(entrants, **more):
    listener = Silent()
    result = hold_contest(
        {"length": 3}, entrants, device="cpu", options=OPTIONS, listener=listener, **more
    )
    assert listener.cases == [result]
    return result


def fail(error):
    def unit():
        raise error

    return unit


def test_every_figure_is_in_the_result():
    allocate = lambda: torch.empty(1000, dtype=torch.uint8)  # noqa: E731
    result = hold(
        [
            Entrant("mine", True, [lambda: 1, lambda: 2], extra={"written": 3}),
            Entrant("peer", False, [lambda: 1, lambda: 2], [allocate]),
            Entrant("other", False, [lambda: 1, lambda: 2], compared=False),
        ]
    )
    assert result["length"] == 3
    assert result["rounds"] == 4
    mine, peer, _ = result["rows"]
    assert mine["written"] == 3
    assert mine["peak_extra_bytes"] is None
    assert peer["peak_extra_bytes"] == 1000
    assert len(peer["samples_ms"]) == 4
    assert len(peer["repeats"]) == 2
    assert peer["ms"]["min"] <= peer["ms"]["q1"] <= peer["ms"]["median"]
    assert [(r["peer"], r["ours"]) for r in result["ratios"]] == [("peer", "mine")]


def test_ratios_are_those_of_the_rounds():
    result = hold([Entrant("mine", True, [lambda: 1]), Entrant("peer", False, [lambda: 1])])
    mine, peer = (row["samples_ms"] for row in result["rows"])
    ratios = sorted(p / m for p, m in zip(peer, mine, strict=True))
    assert result["ratios"][0]["min"] == pytest.approx(ratios[0], rel=1e-3)
    assert result["ratios"][0]["max"] == pytest.approx(ratios[-1], rel=1e-3)


def test_a_peer_that_fails_is_left_out_with_its_error():
    result = hold(
        [
            Entrant("mine", True, [lambda: 1]),
            Entrant("peer", False, [fail(RuntimeError("not implemented for 'Half'\nmore"))]),
        ],
        left_out={"third": "is not installed"},
    )
    assert [row["contender"] for row in result["rows"]] == ["mine"]
    assert result["left_out"] == {
        "third": "is not installed",
        "peer": "RuntimeError: not implemented for 'Half'",
    }


def test_ours_must_not_fail():
    with pytest.raises(RuntimeError, match="broken"):
        hold([Entrant("mine", True, [fail(RuntimeError("broken"))])])


def test_too_little_memory_is_no_failure_of_ours():
    result = hold(
        [
            Entrant("mine", True, [fail(torch.OutOfMemoryError("of 3 GiB"))]),
            Entrant("peer", False, [lambda: 1]),
        ]
    )
    assert "3 GiB" in result["left_out"]["mine"]
    assert result["ratios"] == []


def test_nothing_left_is_a_result_of_nothing():
    result = hold([Entrant("peer", False, [fail(RuntimeError("no"))])])
    assert result["rows"] == []
    assert result["rounds"] == 0


def test_what_follows_from_the_figures_is_there_before_the_listener_hears():
    result = hold([Entrant("mine", True, [lambda: 1])], complete=lambda case: case.update(rate=7))
    assert result["rate"] == 7


def test_an_unknown_clock_is_refused():
    with pytest.raises(BenchError, match="clock 'sun'"):
        TimingOptions(clock="sun")
