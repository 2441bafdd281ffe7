"""Methods over several problems: pooled effects, ranks and sign tests, against scipy and a published example."""

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binomtest, rankdata

from isda.lab.report.across import Signs, friedman, holm, mean_ranks, pooled_effect, signs


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


def test_the_pooled_effect_without_heterogeneity_is_the_weighted_mean():
    effects, errors = [-1.0, -1.1, -0.9], [0.5, 1.0, 0.7]
    pooled = pooled_effect(effects, errors)
    weights = 1 / np.square(errors)
    assert pooled.between == 0
    assert pooled.heterogeneity == 0
    assert pooled.mean == pytest.approx(np.average(effects, weights=weights))
    # The effects agree by chance: Student's interval would be narrower than the normal one.
    assert pooled.half_width == pytest.approx(stats.norm.ppf(0.975) / np.sqrt(weights.sum()))


def test_the_pooled_effect_is_that_of_the_formulas():
    random = np.random.default_rng(0)
    effects, errors = random.normal(-1, 2, 8), random.uniform(0.2, 0.8, 8)
    pooled = pooled_effect(effects.tolist(), errors.tolist())
    fixed = errors**-2.0
    squares = (fixed * (effects - (fixed * effects).sum() / fixed.sum()) ** 2).sum()
    between = (squares - 7) / (fixed.sum() - (fixed**2).sum() / fixed.sum())
    weights = 1 / (errors**2 + between)
    mean = (weights * effects).sum() / weights.sum()
    # Hartung and Knapp: a weighted least squares regression on a constant.
    error = np.sqrt((weights * (effects - mean) ** 2).sum() / 7 / weights.sum())
    assert pooled.mean == pytest.approx(mean)
    assert pooled.half_width == pytest.approx(stats.t.ppf(0.975, 7) * error)
    assert pooled.between == pytest.approx(np.sqrt(between))
    assert pooled.heterogeneity == pytest.approx(1 - 7 / squares)
    assert pooled.p_heterogeneity == pytest.approx(stats.chi2.sf(squares, 7))


def test_the_pooled_interval_covers_the_mean_of_problems_that_differ():
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        errors = random.uniform(0.3, 1.0, 6)
        effects = random.normal(-1, 1, 6) + random.normal(size=6) * errors
        effect = pooled_effect(effects.tolist(), errors.tolist())
        covered += abs(effect.mean + 1) <= effect.half_width
    assert 920 <= covered <= 975


def test_problems_whose_runs_do_not_vary_count_alike():
    assert pooled_effect([1.0, 2.0, 6.0], [0.0, 0.1, 3.0]).mean == pytest.approx(3.0)
    assert pooled_effect([1.0], [0.3]) == pytest.approx((1.0, None, 1, 0.0, 0.0, 1.0))
    with pytest.raises(ValueError, match="same problems, got 2 and 1"):
        pooled_effect([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="must be finite"):
        pooled_effect([1.0, 2.0], [1.0, -1.0])


@pytest.mark.parametrize("ties", [False, True])
def test_friedman_s_statistic_is_scipy_s(ties):
    random = np.random.default_rng(2)
    table = random.integers(0, 6, (4, 9)).astype(float) if ties else random.normal(size=(4, 9))
    table[0] -= 1
    ranking = friedman({str(row): table[row].tolist() for row in range(4)}, "3")
    statistic = stats.friedmanchisquare(*table).statistic
    expected = stats.f.sf(8 * statistic / (9 * 3 - statistic), 3, 3 * 8)
    assert ranking.p == pytest.approx(expected)
    # Demšar (2006), Table 5: q = 2.569 for 4 methods at 5%.
    assert ranking.critical_difference == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 9)), abs=2e-3)
    z = {name: abs(rank - ranking.ranks["3"]) / np.sqrt(4 * 5 / (6 * 9)) for name, rank in ranking.ranks.items()}
    assert list(ranking.p_control.values()) == pytest.approx(holm([2 * stats.norm.sf(z[name]) for name in "012"]))


def test_demsar_s_example_of_four_classifiers():
    # Demšar (2006), section 3.2.2: mean ranks 3.143, 2.000, 2.893, 1.964 on 14 data sets; χ² = 9.28, F = 3.69, and the
    # critical difference at 10% is 1.12. The printed ranks of the 13th are 4, 1, 2, 3.
    areas = {
        "C4.5": [.763, .599, .954, .628, .882, .936, .661, .583, .775, 1, .94, .619, .972, .957],
        "C4.5+m": [.768, .591, .971, .661, .888, .931, .668, .583, .838, 1, .962, .666, .981, .978],
        "C4.5+cf": [.771, .59, .968, .654, .886, .916, .609, .563, .866, 1, .965, .614, .9751, .946],
        "C4.5+m+cf": [.798, .569, .967, .657, .898, .931, .685, .625, .875, 1, .962, .669, .975, .97],
    }  # fmt: skip
    ranking = friedman({name: [-area for area in values] for name, values in areas.items()}, level=0.9)
    assert list(ranking.ranks.values()) == pytest.approx([3.143, 2.0, 2.893, 1.964], abs=6e-4)
    assert ranking.critical_difference == pytest.approx(1.12, abs=5e-3)
    assert ranking.p < 0.05


def test_equal_methods_have_no_difference_in_ranks():
    assert friedman({"a": [1.0, 2.0], "b": [1.0, 2.0]}).p == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"control must be one of the methods \['a', 'b'\], got 'c'"):
        friedman({"a": [1.0], "b": [1.0]}, "c")
    with pytest.raises(ValueError, match="at least 2 methods"):
        friedman({"a": [1.0]})
