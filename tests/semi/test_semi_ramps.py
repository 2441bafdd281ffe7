"""Ramps of loss weights over training."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isda.lab.methods.semi import RampedWeight, gaussian_ramp_down, gaussian_ramp_up, linear_ramp_up
from isda.lab.methods.semi.defaults import RAMPS

steps = st.integers(1, 10_000)
step = st.integers(-100, 20_000)


@given(step=step, steps=steps)
def test_each_is_its_formula_with_the_time_clamped_to_0_1(step, steps):
    t = sorted([0, step / steps, 1])[1]
    assert gaussian_ramp_up(step, steps) == pytest.approx(math.e ** (-5 * (1 - t) * (1 - t)), rel=1e-12)
    assert gaussian_ramp_down(step, steps) == pytest.approx(math.e ** (-12.5 * t * t), rel=1e-12)
    assert linear_ramp_up(step, steps) == t


@given(step=st.integers(0, 20_000), steps=steps)
def test_ramp_ups_never_fall_and_the_ramp_down_never_rises(step, steps):
    for ramp in RAMPS.values():
        assert ramp(step, steps) <= ramp(step + 1, steps)
    assert gaussian_ramp_down(step, steps) >= gaussian_ramp_down(step + 1, steps)


def test_laine_and_ailas_values_at_the_ends_of_their_ramps():
    # Epoch 0 and 80 of the ramp-up; the ramp-down of 50 epochs in terms of its epoch e is exp(-(e / 2)^2 / 50).
    assert gaussian_ramp_up(0, 80) == pytest.approx(0.006737946999)
    assert gaussian_ramp_up(80, 80) == pytest.approx(1.0)
    assert gaussian_ramp_down(20, 50) == pytest.approx(math.exp(-(10.0**2) / 50))


def test_a_ramp_of_no_steps_is_over():
    assert gaussian_ramp_up(0, 0) == linear_ramp_up(0, 0) == 1.0
    assert RampedWeight(3.0).at(0) == 3.0


@pytest.mark.parametrize("name", list(RAMPS))
def test_a_weight_is_its_final_value_times_the_ramp(name):
    weight = RampedWeight(7.0, name, steps=40)
    steps = (0, 13, 40, 90)
    assert [weight.at(step) for step in steps] == pytest.approx([7 * RAMPS[name](step, 40) for step in steps])
    assert weight.at(40) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0,), "final must be a finite number >= 0, got -1.0"),
        ((math.inf,), "final must be a finite number >= 0, got inf"),
        ((1.0, "gausian"), "ramp must be one of gaussian, linear, got 'gausian'; did you mean 'gaussian'"),
        ((1.0, "linear", -1), "steps must not be negative, got -1"),
    ],
)
def test_bad_weights_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RampedWeight(*arguments)


def test_a_negative_length_is_refused():
    with pytest.raises(ValueError, match="steps must not be negative, got -3"):
        gaussian_ramp_up(1, -3)
