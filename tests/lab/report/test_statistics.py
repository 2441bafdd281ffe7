"""Statistics over seeds against scipy.stats and a textbook's numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from isda.lab.report.statistics import mean_std, paired_difference, t_interval

errors = st.floats(min_value=0, max_value=100, allow_nan=False)
samples = st.lists(errors, min_size=2, max_size=12)
pairs = st.lists(st.tuples(errors, errors), min_size=2, max_size=12)


@given(samples)
def test_mean_and_standard_deviation_are_the_sample_s(values):
    mean, std = mean_std(values)
    assert mean == pytest.approx(np.mean(values))
    assert std == pytest.approx(np.std(values, ddof=1), abs=1e-9)


@given(samples, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_is_student_s(values, level):
    mean, half_width = t_interval(values, level)
    spread = stats.sem(values)
    low, high = stats.t.interval(level, len(values) - 1, np.mean(values), spread) if spread else (mean, mean)
    assert mean - half_width == pytest.approx(low, abs=1e-9)
    assert mean + half_width == pytest.approx(high, abs=1e-9)


@given(pairs)
def test_the_paired_difference_is_that_of_the_paired_t_test(both):
    ours, base = zip(*both, strict=True)
    mean, half_width = paired_difference(ours, base)
    assert mean == pytest.approx(np.mean(np.subtract(ours, base)), abs=1e-9)
    if np.std(np.subtract(ours, base)) > 1e-6:
        low, high = stats.ttest_rel(ours, base).confidence_interval(0.95)
        assert mean - half_width == pytest.approx(low, abs=1e-7)
        assert mean + half_width == pytest.approx(high, abs=1e-7)


def test_the_interval_of_student_s_own_sleep_data():
    # Student (1908), additional hours of sleep by drug 1 and drug 2 of the same ten patients: t = -4.0621, and the
    # interval of the difference is -2.4598858 to -0.7001142 (R's manual page of t.test).
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    interval = paired_difference(first, second)
    assert interval.mean == pytest.approx(-1.58)
    assert interval.mean - interval.half_width == pytest.approx(-2.4598858, abs=1e-7)
    assert interval.mean + interval.half_width == pytest.approx(-0.7001142, abs=1e-7)
    assert interval.excludes_zero


def test_one_seed_has_a_mean_but_no_spread():
    assert mean_std([3.0]) == (3.0, None)
    assert t_interval([3.0]) == (3.0, None)
    assert paired_difference([3.0], [4.0]) == pytest.approx((-1.0, None))
    assert not paired_difference([3.0], [4.0]).excludes_zero


def test_an_interval_that_reaches_over_zero_does_not_exclude_it():
    assert not t_interval([-1.0, 0.5, 1.5]).excludes_zero


@pytest.mark.parametrize("function", [mean_std, t_interval])
def test_no_values_are_refused(function):
    with pytest.raises(ValueError, match="values must hold at least one number, got none"):
        function([])


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="values must be finite, got nan among 2"):
        mean_std([1.0, math.nan])
    with pytest.raises(ValueError, match="base must be finite, got inf among 2"):
        paired_difference([1.0, 2.0], [1.0, math.inf])


def test_values_of_different_seeds_are_refused():
    with pytest.raises(ValueError, match="ours and base must be of the same seeds, got 2 and 3 values"):
        paired_difference([1.0, 2.0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_outside_zero_and_one_is_refused(level):
    with pytest.raises(ValueError, match=f"level must lie strictly between 0 and 1, got {level}"):
        t_interval([1.0, 2.0], level)
