import pytest

from fairseq_fixed.experiments import convergence, speed


def run(slug, seed, losses, seconds=1.0, every=100):
    """A result with validations every so many updates, each so many seconds after the last."""
    curve = [
        {"update": every * (i + 1), "loss": loss + 1, "nll_loss": loss, "wall": seconds * (i + 1)}
        for i, loss in enumerate(losses)
    ]
    return {"system": slug.upper(), "slug": slug, "seed": seed, "curve": curve}


def test_ratios_against_the_same_seed():
    results = [
        run("base", 1, [5, 4, 3, 3.5]),  # best: 3 at 300
        run("base", 2, [6, 5, 4, 2]),  # best: 2 at 400
        run("fast", 1, [4, 3, 2, 1], seconds=2),
        run("fast", 2, [4, 2, 1, 1], seconds=2),
    ]
    (row,) = speed.reach(results, "base")
    assert [s["updates"] for s in row["seeds"]] == [200, 200]
    assert [s["updates_ratio"] for s in row["seeds"]] == [200 / 300, 200 / 400]
    assert row["updates_ratio"] == pytest.approx((200 / 300 + 0.5) / 2)
    assert [s["seconds"] for s in row["seeds"]] == [4, 4]
    assert row["seconds_ratio"] == pytest.approx((4 / 3 + 1) / 2)
    assert row["seeds"][0]["target"] == 3 and row["seeds"][0]["best"] == 1


def test_never_reached():
    results = [run("base", s, [5, 4, 3]) for s in (1, 2, 3)]
    results += [run("slow", 1, [5, 3, 3]), run("slow", 2, [5, 4, 3.1]), run("slow", 3, [5, 4, 3])]
    results += [run("none", s, [9, 9, 9]) for s in (1, 2, 3)]
    slow, none = speed.reach(results, "base")
    assert [s["updates_ratio"] for s in slow["seeds"]] == [2 / 3, None, 1]
    assert slow["updates_ratio"] == 1  # of 2/3, 1 and never
    assert none["updates_ratio"] is None and none["seconds_ratio"] is None
    text = "\n".join(speed.speed_section(results, "base"))
    assert "| SLOW | 1.00 (0.67, never, 1.00) | 1.00 (0.67, never, 1.00) |" in text
    assert "| NONE | never (never, never, never) |" in text
    assert "as low as BASE's lowest" in text and "Median over seeds" in text


def test_half_reached_and_half_not_is_never():
    results = [run("base", s, [5, 4, 3]) for s in (1, 2)]
    results += [run("slow", 1, [5, 3, 3]), run("slow", 2, [5, 4, 3.1])]
    assert speed.reach(results, "base")[0]["updates_ratio"] is None


def test_only_seeds_that_both_have():
    results = [run("base", 1, [5, 4]), run("a", 1, [4, 3]), run("a", 2, [1, 1]), run("b", 2, [1])]
    (row,) = speed.reach(results, "base")
    assert row["slug"] == "a" and [s["seed"] for s in row["seeds"]] == [1]
    assert "| A | 0.50 | 0.50 |" in speed.speed_section(results, "base")


def test_without_times_or_curves():
    base, other = run("base", 1, [5, 4]), run("a", 1, [4, 3])
    for point in other["curve"]:
        point["wall"] = 0.0
    (row,) = speed.reach([base, other], "base")
    assert row["updates_ratio"] == 0.5 and "seconds_ratio" not in row
    assert "| A | 0.50 | not known |" in speed.speed_section([base, other], "base")
    assert speed.reach([base, run("a", 1, [])], "base") == []
    assert speed.reach([run("base", 1, []), run("a", 1, [1])], "base") == []
    assert speed.speed_section([base], "base") == []


def test_a_standstill_of_the_machine_is_not_time():
    base, other = run("base", 1, [5, 4, 3]), run("a", 1, [4, 3, 2, 2, 2], seconds=2)
    for point in other["curve"][1:]:
        point["wall"] += 1000  # suspended between its first two validations
    (row,) = speed.reach([base, other], "base")
    assert row["seeds"][0]["seconds"] == pytest.approx(4)
    assert row["seconds_ratio"] == pytest.approx(4 / 3)
    # a start that takes long, and a validation before the first update
    other["curve"] = [{"update": 0, "loss": 9, "wall": 0.0}] + [
        {"update": 100 * i, "loss": 4 - i, "wall": 500 + 2.0 * i} for i in (1, 2, 3)
    ]
    assert speed.seconds_an_update(other["curve"]) == pytest.approx(0.02)
    assert speed.seconds_an_update([{"update": 10, "loss": 1}]) is None


def training(losses, updates=40, seconds=60.0, ended=None, **budget):
    return {
        "curve": [{"update": i, "loss": loss} for i, loss in enumerate(losses)],
        "training": {
            "updates": updates, "seconds": seconds, "ended": ended, "validations_since_best": 0,
        },
        "budget": {"max_update": 100, "max_hours": 0, "patience": 0, **budget},
    }  # fmt: skip


def test_converged_is_no_better_loss_in_five_validations():
    assert not convergence.converged(training([3, 2, 2.1, 2.2, 2.3, 2.4]))
    assert convergence.converged(training([3, 2, 2.1, 2.2, 2.3, 2.4, 2.0]))
    assert not convergence.converged(training([3, 2, 2.1, 2.2, 2.3, 2.4, 1.9]))
    old = training([])
    assert not convergence.converged(old)
    old["training"]["validations_since_best"] = 5
    assert convergence.converged(old)


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (training([2], ended="hours", updates=100), "hours"),  # what the log said
        (training([2, 3, 3, 3], patience=3), "patience"),
        (training([2, 3, 3], patience=3, updates=100), "updates"),
        (training([2], max_hours=1.0, seconds=3590), "hours"),
        (training([2]), "unknown"),
    ],
)
def test_what_ended_a_training(result, what):
    assert convergence.ending(result) == what


def test_endings_in_words():
    ended = {
        kind: convergence.describe_ending(training([2], ended=kind, patience=5, max_hours=0.5))
        for kind in ("patience", "updates", "hours", None)
    }
    assert ended == {
        "patience": "no better loss in 5 validations",
        "updates": "limit of 100 updates",
        "hours": "limit of 0.5 hours",
        None: "not known",
    }
