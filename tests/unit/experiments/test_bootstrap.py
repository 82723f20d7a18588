"""The bootstrap over sentences and seeds, with a metric whose scores can be counted by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from fairseq_fixed.experiments import bootstrap, counts, scoring
from fairseq_fixed.experiments.errors import ExperimentError
from tests.unit.experiments.test_scoring import BAD, GOOD, REFERENCE


class Mean:
    """A score that is the mean of whole numbers, one a sentence: linear, without sacrebleu."""

    def _compute_score_from_stats(self, sums):
        total, sentences = sums
        return SimpleNamespace(score=total / sentences)


def table(*values):
    """One seed's counts: a value a sentence, and a one that counts the sentences."""
    return np.stack([np.array(values), np.ones(len(values), dtype=int)], 1)


def compare(base, system, resamples=4000, **options):
    """Test one system; each side is a list of tables, one a seed."""
    return bootstrap.compare_over_seeds(
        Mean(), {"base": base, "system": system}, "base", resamples=resamples, **options
    )["system"]


def test_seeds_that_can_be_counted():
    # One sentence, two seeds a system. A resample takes one seed of each:
    # 1 - 0, 1 - 4, 5 - 0 or 5 - 4, so 1, -3, 5 or 1; their mean is 1, the difference.
    # Two of four lie 4 from it, two lie 0; the difference lies 1 from zero.
    found = compare([table(0), table(4)], [table(1), table(5)])
    assert found["difference"] == 1
    assert found["p"] == pytest.approx(0.5, abs=0.04)
    assert found["interval"] == [-3, 5]
    assert found["seeds"] == [2, 2]
    # 1 - 0, 3 - 0: their mean is 2, which is 2 from zero; none lies as far from it
    found = compare([table(0), table(0)], [table(1), table(3)])
    assert found["p"] == 1 / 4001


def test_sentences_that_can_be_counted():
    # Two sentences with differences 3 and -1: a resample has 3, 1 (twice as often) or -1.
    found = compare([table(0, 1)], [table(3, 0)])
    assert found["difference"] == 1
    assert found["p"] == pytest.approx(0.5, abs=0.04)


def test_three_seeds_have_the_spread_of_their_mean():
    # With k - 1 draws of k, the variance of the mean is s²/k, s² the sample variance.
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1000, size=3)
    found = compare([table(0)] * 3, [table(v) for v in values], resamples=40_000)
    draws = np.array([(a + b) / 2 for a in values for b in values])
    assert draws.var() == pytest.approx(values.var(ddof=1) / 3)
    assert found["interval"] == [draws.min(), draws.max()]


def test_the_sentences_are_the_same_for_all():
    # Sentences differ by far more than the systems do; paired, that does not matter.
    rng = np.random.default_rng(1)
    hard = rng.integers(0, 100_000, size=300)
    one = [table(*(hard + rng.integers(0, 10, size=300))) for _ in range(3)]
    two = [table(*(hard + 20 + rng.integers(0, 10, size=300))) for _ in range(3)]
    assert compare(one, two)["p"] < 0.001
    shuffled = [table(*rng.permutation(t[:, 0])) for t in two]
    assert compare(one, shuffled)["p"] > 0.1


def test_a_single_seed_borrows_the_luck_of_the_others():
    # One sentence. The system's 3 seeds have 0, 3 and 6 (mean 3, deviations -3, 0, 3); the
    # baseline's only seed has 3. Means of two of three: 0, 1.5 (twice), 3 (three times), 4.5
    # (twice), 6. The borrowed deviation times √(3/2) is added.
    system = [table(0), table(3), table(6)]
    luck = 3 * 1.5**0.5
    found = compare([table(3)], system, resamples=30_000)
    assert found["difference"] == 0 and found["seeds"] == [3, 1]
    assert found["interval"] == pytest.approx([-3 - luck, 3 + luck])
    found = compare(system, [table(3)], resamples=30_000)  # and the other way round
    assert found["interval"] == pytest.approx([-3 - luck, 3 + luck])
    # their variance: s²/3 of the mean, and s² of one seed
    s2 = np.var([0, 3, 6], ddof=1)
    means = np.array([(a + b) / 2 for a in (0, 3, 6) for b in (0, 3, 6)]) - 3
    sums = np.array([m + z for m in means for z in (-luck, 0, luck)])
    assert sums.var() == pytest.approx(s2 / 3 + s2)
    # two single seeds have none to borrow
    assert compare([table(1)], [table(5)])["interval"] == [4, 4]


def test_a_single_seed_is_not_called_better_for_its_luck():
    rng = np.random.default_rng(5)
    found = []
    for i in range(300):
        base = [table(*[10_000 + int(rng.normal() * 1000)] * 2) for _ in range(3)]
        one = [table(*[10_000 + int(rng.normal() * 1000)] * 2)]
        found.append(compare(base, one, resamples=300, seed=i)["p"])
    share = (np.array(found) <= 0.05).mean()
    assert share < 0.21 + 3 * (0.21 * 0.79 / 300) ** 0.5  # as the module says; 0.43 without


def simulate(pairs, *, seeds, seed_spread, sentence_spread, shift=0, n=60):
    """Return p of pairs of systems that differ by chance, and by `shift`."""
    rng = np.random.default_rng(2)
    found = []
    for i in range(pairs):
        sides = []
        for side in range(2):
            # the system's own way with each sentence, the same for all its seeds
            style = rng.normal(size=n) * sentence_spread
            sides.append(
                [
                    table(
                        *np.round(
                            10_000 + shift * side + style + rng.normal() * seed_spread
                        ).astype(int)
                    )
                    for _ in range(seeds)
                ]
            )
        found.append(compare(*sides, resamples=300, seed=i)["p"])
    return np.array(found)


@pytest.mark.parametrize(
    ("seeds", "seed_spread", "sentence_spread", "most"),
    [
        (1, 0, 1000, 0.05),
        (3, 0, 1000, 0.05),
        (3, 100, 1000, 0.06),  # as much variance of the mean from seeds as from sentences
        (3, 1000, 0, 0.13),  # what the module says of three seeds
        (10, 1000, 0, 0.07),
    ],
)
def test_equal_systems_have_any_p_as_often_as_any_other(seeds, seed_spread, sentence_spread, most):
    pairs = 300
    p = simulate(pairs, seeds=seeds, seed_spread=seed_spread, sentence_spread=sentence_spread)
    chance = 3 * (most * (1 - most) / pairs) ** 0.5  # three standard errors
    assert (p <= 0.05).mean() < most + chance
    assert (p <= 0.05).mean() > 0.05 - 3 * (0.05 * 0.95 / pairs) ** 0.5
    assert abs((p <= 0.5).mean() - 0.5) < 3 * 0.5 / pairs**0.5


def test_a_large_difference_has_a_small_p():
    p = simulate(40, seeds=3, seed_spread=100, sentence_spread=1000, shift=2000)
    assert (p < 0.01).all()


def test_the_seeds_own_spread_makes_a_difference_less_sure():
    rng = np.random.default_rng(3)
    noise = [rng.integers(0, 100, size=200) for _ in range(2)]

    def side(k, shift, spread):
        return [table(*(1000 + noise[k] + shift + s * spread)) for s in (-1, 0, 1)]

    p = [compare(side(0, 0, spread), side(1, 40, spread))["p"] for spread in (0, 20, 60)]
    assert p[0] < 0.01
    assert p[0] < p[1] < p[2]
    assert p[2] > 0.2


def test_equal_scores_are_never_significant():
    same = [table(1, 2), table(2, 3)]
    assert compare(same, list(same))["p"] == 1.0


def test_it_is_the_same_each_time():
    one = [table(1, 5, 2), table(2, 3, 9)]
    two = [table(4, 5, 2), table(2, 8, 9)]
    assert compare(one, two) == compare(one, two)


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_with_one_seed_it_is_the_paired_bootstrap(name):
    # Two systems that leave out words at random, equally many: p is neither 0 nor 1, and no two
    # sentences differ alike, so that a permutation test finds about the same.
    draw = np.random.default_rng(1)
    lines, other = (
        [" ".join(w for w in line.split() if draw.random() > rate) for line in REFERENCE]
        for rate in (0.2, 0.2)
    )
    metrics = scoring.make_metrics([name], "13a")
    ours = bootstrap.compare_over_seeds(
        metrics[name],
        {
            "base": [counts.count(other, REFERENCE, metrics)[name]],
            "system": [counts.count(lines, REFERENCE, metrics)[name]],
        },
        "base",
        resamples=4000,
    )["system"]["p"]
    theirs = scoring.compare(
        ("base", other), [("system", lines)], REFERENCE, metrics, bootstrap=4000, trials=4000
    )["tests"]["randomisation"][name]["system"]["p"]
    assert 0.02 < theirs < 0.98
    assert ours == pytest.approx(theirs, abs=0.12)


METRICS = scoring.make_metrics(["bleu", "chrf"], "13a")


def result(slug, seed, lines=GOOD, reference=REFERENCE, counted=True):
    content = {"slug": slug, "system": slug, "seed": seed}
    if counted:
        packed = counts.pack(counts.count(lines, reference, METRICS), reference)
        content["statistics"] = packed
    return content


def test_results_of_separate_runs_are_compared():
    results = [
        result("base", 1, BAD), result("base", 2, BAD[::-1]), result("good", 1), result("good", 7),
        result("old", 1, counted=False), result("mixed", 1), result("mixed", 2, counted=False),
        result("single", 3),
    ]  # fmt: skip
    found = bootstrap.compare_results(results, "base", resamples=100)
    assert list(found) == ["bleu", "chrf"]
    assert list(found["bleu"]) == ["good", "single"]
    assert found["bleu"]["good"]["p"] < 0.05
    assert found["bleu"]["single"]["seeds"] == [1, 2]


def test_one_seed_each_is_left_to_the_other_tests_where_there_are_any():
    results = [result("base", 1, BAD), result("good", 1), result("late", 1)]
    everything = {(metric, slug) for metric in METRICS for slug in ("good", "late")}
    assert bootstrap.compare_results(results, "base", tested=everything) == {}
    some = everything - {("chrf", "late")}
    found = bootstrap.compare_results(results, "base", tested=some, resamples=50)
    assert {metric: list(by_slug) for metric, by_slug in found.items()} == {"chrf": ["late"]}
    assert found["chrf"]["late"]["seeds"] == [1, 1]


def test_without_counts_of_the_baseline_or_of_any_other_system():
    assert bootstrap.compare_results([result("good", 1), result("good", 2)], "base") == {}
    old = [result("base", s, counted=False) for s in (1, 2)]
    assert bootstrap.compare_results([*old, result("a", 1), result("a", 2)], "base") == {}


def test_other_test_sets_are_refused():
    other = [*REFERENCE[:-1], "something else"]
    results = [result("base", 1), result("base", 2), result("good", 1, reference=other)]
    with pytest.raises(ExperimentError, match="base, seed 1, and good, seed 1, were scored on"):
        bootstrap.compare_results(results, "base")
