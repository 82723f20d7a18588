import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_fixed.bench.statistics import fit_exponent, ratio_spread, spread


def test_spread_of_a_known_sample():
    found = spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.min, found.q1, found.median, found.q3, found.max) == (1, 2, 3, 4, 5)


def test_nothing_measured_has_no_spread():
    with pytest.raises(ValueError, match="no samples"):
        spread([])


@given(
    st.lists(st.floats(0.1, 100), min_size=3, max_size=9),
    st.floats(0.2, 5),
    st.data(),
)
def test_what_slows_a_whole_round_changes_no_ratio(ours, factor, data):
    slowdown = data.draw(st.lists(st.floats(1, 10), min_size=len(ours), max_size=len(ours)))
    mine = [t * s for t, s in zip(ours, slowdown, strict=True)]
    peer = [factor * t for t in mine]
    found = ratio_spread(peer, mine)
    assert found.min == pytest.approx(factor)
    assert found.max == pytest.approx(factor)


def test_rounds_must_match():
    with pytest.raises(ValueError):
        ratio_spread([1.0, 2.0], [1.0])


@given(st.floats(0.3, 3), st.floats(1e-6, 1e3))
def test_a_power_of_the_length_is_found_again(exponent, factor):
    lengths = [512, 1024, 2048, 4096]
    fit = fit_exponent(lengths, [factor * n**exponent for n in lengths])
    assert fit.exponent == pytest.approx(exponent)
    assert fit.factor == pytest.approx(factor, rel=1e-6)
    assert fit.points == 4


def test_short_lengths_are_left_out_of_the_fit():
    lengths = [16, 64, 512, 1024, 2048]
    costs = [7.0, 7.0, 512.0, 1024.0, 2048.0]
    assert fit_exponent(lengths, costs, fit_from=512).exponent == pytest.approx(1)
    assert fit_exponent(lengths, costs).exponent < 1.4


def test_one_length_has_no_exponent():
    assert fit_exponent([8, 8], [1.0, 2.0]) is None
    assert fit_exponent([8, 16], [1.0, 2.0], fit_from=10) is None
