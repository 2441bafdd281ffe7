"""The number of seeds a difference needs: against simulation and noncentral t."""

import math

import numpy as np
import pytest
from scipy import stats

from isda.lab.report.planning import MOST_SEEDS, POWER, plan_seeds, power
from isda.lab.report.statistics import many_to_one


@pytest.mark.parametrize("seeds", [5, 12, 40])
def test_power_of_two_methods_is_that_of_the_paired_t_test(seeds):
    # The differences have the standard deviation sqrt(2) 0.8; the mean of `seeds` of them is t with this noncentrality.
    shift, bound = math.sqrt(seeds / 2) / 0.8, stats.t.ppf(0.975, seeds - 1)
    expected = stats.nct.sf(bound, seeds - 1, shift) + stats.nct.cdf(-bound, seeds - 1, shift)
    assert power(2, seeds, 0.8, 0.95) == pytest.approx(expected, abs=1e-6)


def test_power_is_the_share_of_layouts_that_tell_the_difference():
    random = np.random.default_rng(0)
    found = 0
    for _ in range(1000):
        table = random.normal(0, 0.6, (4, 5)) + random.normal(0, 2, (1, 5))
        table[1] += 1.0
        found += many_to_one(dict(zip(("cross-entropy", "a", "b", "c"), table, strict=True)))["a"].excludes_zero
    expected = power(4, 5, 0.6, 0.95)
    assert found / 1000 == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 1000))


def test_the_plan_is_the_fewest_seeds_with_that_power():
    random = np.random.default_rng(1)
    table = random.normal(0, 1.5, (5, 3)) + 40
    family = many_to_one(dict(zip(("cross-entropy", *"abcd"), table, strict=True)))
    plan = plan_seeds(family, 1.0)
    needed, std = plan.seeds_needed, plan.residual_std
    assert (plan.seeds, plan.degrees_of_freedom) == (3, 8)
    assert std == pytest.approx(family.pooled.std)
    assert power(5, needed, std, 0.95) >= POWER > power(5, needed - 1, std, 0.95)
    # Four times the seeds tell about half the difference.
    assert plan_seeds(family, 0.5).seeds_needed == pytest.approx(4 * needed, rel=0.3)
    words = plan.sentence("points")
    assert words.startswith(f"To tell a difference of 1 point with a probability of 80%, {needed} seeds are needed")
    assert "and there are 3" in words


def test_what_cannot_be_told_is_said():
    family = many_to_one({"cross-entropy": [10.0, 30.0, 20.0], "a": [30.0, 10.0, 20.0]})
    plan = plan_seeds(family, 1e-3)
    assert plan.seeds_needed is None
    assert f"more than {MOST_SEEDS:,} seeds are needed" in plan.sentence("points")
    assert plan_seeds(many_to_one({"cross-entropy": [1.0], "a": [2.0]}), 1.0) is None
    assert plan_seeds(many_to_one({"cross-entropy": [1.0, 2.0], "a": [2.0, 3.0]}), 1.0).seeds_needed == 2
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="plan must be a positive difference, got"):
            plan_seeds(family, wrong)
