from math import comb

import numpy as np
import pytest

from fairseq_fixed.experiments.counts import count
from fairseq_fixed.experiments.randomisation import paired_randomisation
from fairseq_fixed.experiments.scoring import make_metrics

REFERENCE = [f"the cat number {i} sat on the mat beside dog {i % 7}" for i in range(60)]
WORSE = [line.replace("cat", "ox") for line in REFERENCE]
METRICS = make_metrics(["bleu", "chrf", "ter"], "13a")
TRIALS = 4000


def p_values(one, other, trials=TRIALS):
    a, b = (count(lines, REFERENCE, METRICS) for lines in (one, other))
    return {
        name: paired_randomisation(metric, a[name], b[name], trials=trials, seed=12345)
        for name, metric in METRICS.items()
    }


@pytest.mark.parametrize("differing", [1, 2, 3, 5])
def test_few_sentences_that_differ_are_judged_as_exactly(differing):
    # All differ in one direction: of 2^n equally likely exchanges, only all and none lie as far.
    better = [*REFERENCE[:differing], *WORSE[differing:]]
    exact = 2 / 2**differing
    spread = 4 * (exact * (1 - exact) / TRIALS) ** 0.5
    for name, p in p_values(WORSE, better).items():
        assert p == pytest.approx(exact, abs=spread + 1 / TRIALS), name


def test_equal_steps_up_and_down_are_judged_as_exactly():
    # Edits: the first is better in five sentences, the other in two. TER is a sum over sentences,
    # so the exchanges that lie as far apart can be counted: |heads of seven - 3.5| ≥ 1.5.
    first = [*REFERENCE[:5], *WORSE[5:]]
    other = [*WORSE[:5], *REFERENCE[5:7], *WORSE[7:]]
    exact = sum(comb(7, k) for k in range(8) if abs(k - 3.5) >= 1.5) / 2**7
    assert p_values(first, other)["ter"] == pytest.approx(exact, abs=0.04)


def test_no_difference_is_never_significant():
    assert set(p_values(WORSE, list(WORSE)).values()) == {1.0}


def test_where_nothing_ties_it_is_sacrebleus():
    from sacrebleu.significance import PairedTest

    draw = np.random.default_rng(1)
    words = [line.split() for line in REFERENCE]

    def noisy():
        return [" ".join(w for w in line if draw.random() > 0.3) for line in words]

    first, other = noisy(), noisy()
    mine = p_values(first, other, trials=300)
    for name in ("bleu", "chrf"):
        test = PairedTest(
            [("a", first), ("b", other)], {name: METRICS[name]}, [REFERENCE], "ar", 300
        )
        _, columns = test()
        (column,) = (key for key in columns if key != "System")
        assert mine[name] == pytest.approx(columns[column][1].p_value, abs=1e-12)
