"""Mean ranks and sign tests, against scipy's."""

import numpy as np
import pytest
from scipy.stats import binomtest, rankdata

from isda.report.across import Signs, mean_ranks, signs


def test_mean_ranks_are_those_of_scipy_with_ties():
    table = np.random.default_rng(0).integers(0, 4, (5, 30)).astype(float)
    ours = mean_ranks({str(row): table[row].tolist() for row in range(5)})
    assert list(ours.values()) == pytest.approx(rankdata(table, axis=0).mean(1))


@pytest.mark.parametrize(("smaller", "larger"), [(12, 4), (4, 12), (8, 8), (16, 0), (1, 0), (0, 0), (5, 6)])
def test_the_sign_test_is_the_binomial_test(smaller, larger):
    expected = binomtest(smaller, smaller + larger).pvalue if smaller + larger else 1.0
    assert Signs(smaller, larger, 3).p == pytest.approx(expected)


def test_signs_count_who_is_smaller():
    assert signs([1, 1, 2, 5], [2, 2, 2, 4]) == Signs(2, 1, 1)


def test_figures_of_other_problems_are_refused():
    with pytest.raises(ValueError, match=r"same problems for every method, got \{'a': 1, 'b': 2\}"):
        mean_ranks({"a": [1.0], "b": [1.0, 2.0]})
    with pytest.raises(ValueError, match="same problems"):
        signs([1.0], [])
