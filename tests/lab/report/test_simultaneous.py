"""Dunnett's intervals in the layout of methods x seeds: scipy, published tables, brute force, coverage."""

import math

import numpy as np
import pytest
from scipy import stats

from isda.lab.report.layout import make_layout, unequal_methods
from isda.lab.report.multivariate_t import simultaneous_p, simultaneous_quantile
from isda.lab.report.statistics import compare_pairs, many_to_one, paired_difference

# Dunnett (1964), New tables for multiple comparisons with a control, two-sided, 1 to 9 treatments.
DUNNETT = {
    (0.95, 5): (2.57, 3.03, 3.29, 3.48, 3.62, 3.73, 3.82, 3.90, 3.97),
    (0.95, 10): (2.23, 2.57, 2.76, 2.89, 2.99, 3.07, 3.14, 3.19, 3.24),
    (0.95, 20): (2.09, 2.38, 2.54, 2.65, 2.73, 2.80, 2.86, 2.90, 2.95),
    (0.95, 60): (2.00, 2.27, 2.41, 2.51, 2.58, 2.64, 2.69, 2.73, 2.77),
    (0.99, 10): (3.17, 3.53, 3.74, 3.88, 3.99, 4.08, 4.16, 4.22, 4.28),
    (0.99, 20): (2.85, 3.13, 3.29, 3.40, 3.48, 3.55, 3.60, 3.65, 3.69),
}


def equal_correlation(count, shared=0.5):
    return np.full((count, count), shared) + (1 - shared) * np.eye(count)


def draw_layout(methods, seeds, random, effect=1.0):
    """Figures with effects of methods and seeds."""
    table = random.normal(size=(methods, seeds)) + effect * random.normal(size=(1, seeds)) + 30
    return {("cross-entropy" if row == 0 else f"m{row}"): table[row].tolist() for row in range(methods)}


@pytest.mark.parametrize(("level", "dof"), DUNNETT)
def test_quantiles_are_those_of_dunnett_s_tables(level, dof):
    ours = [simultaneous_quantile(level, equal_correlation(count), dof) for count in range(1, 10)]
    assert ours == pytest.approx(DUNNETT[level, dof], abs=0.0101)


def test_quantiles_of_unequal_correlations_are_those_of_brute_force():
    random = np.random.default_rng(0)
    factor = random.normal(size=(5, 5)) + 1.5
    covariance = factor @ factor.T
    scale = np.sqrt(np.diag(covariance))
    correlation, dof = covariance / np.outer(scale, scale), 7
    normal = random.standard_normal((400_000, 5)) @ np.linalg.cholesky(correlation).T
    largest = np.abs(normal / np.sqrt(random.chisquare(dof, (400_000, 1)) / dof)).max(axis=1)
    for level in (0.9, 0.95):
        bound = simultaneous_quantile(level, correlation, dof)
        assert (largest <= bound).mean() == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 400_000))
        assert simultaneous_p(bound, correlation, dof) == pytest.approx(1 - level, abs=1e-6)


def test_both_ways_of_integration_agree():
    # Correlations that differ by a hair are integrated by the quasi-Monte Carlo rule, equal ones by quadrature.
    for count, dof in ((2, 3), (5, 15), (11, 44)):
        nearly = equal_correlation(count)
        nearly[0, 1] = nearly[1, 0] = 0.5 + 1e-6
        exact = simultaneous_quantile(0.95, equal_correlation(count), dof)
        assert simultaneous_quantile(0.95, nearly, dof) == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize("counts", [(5, 5, 5, 5), (6, 4, 5), (3, 6, 4, 5, 3)])
def test_unpaired_layouts_agree_with_scipy_s_dunnett(counts):
    random = np.random.default_rng(len(counts))
    control, *others = (random.normal(loc, 1.0, size) for loc, size in zip((0, 1, 2, 0, 1), counts, strict=False))
    values = {"cross-entropy": control} | {f"m{index}": sample for index, sample in enumerate(others)}
    family = many_to_one(values, paired=False)
    theirs = stats.dunnett(*others, control=control, random_state=0)
    intervals = theirs.confidence_interval(0.95)
    assert [interval.mean - interval.half_width for interval in family.values()] == pytest.approx(
        intervals.low, abs=0.01
    )
    assert [interval.mean + interval.half_width for interval in family.values()] == pytest.approx(
        intervals.high, abs=0.01
    )
    assert [family.p_value(name) for name in family] == pytest.approx(theirs.pvalue, abs=2e-3)


def test_dunnett_s_own_blood_counts():
    # Dunnett (1955), A multiple comparison procedure for comparing several treatments with a control: blood counts of
    # mice, control and two drugs; differences 0.65 and 2.63, s = 1.175 with 12 degrees of freedom.
    family = many_to_one(
        {
            "control": [7.40, 8.50, 7.20, 8.24, 9.84, 8.32],
            "A": [9.76, 8.80, 7.68, 9.36],
            "B": [12.80, 9.68, 12.16, 9.20, 10.55],
        },
        "control",
        paired=False,
    )
    assert (family.pooled.dof, round(family.pooled.std, 3)) == (12, 1.175)
    assert [round(interval.mean, 2) for interval in family.values()] == [0.65, 2.63]
    # The quantile of two treatments and equal groups is 2.50 in the tables of 1964; unequal groups change it little.
    assert family["A"].half_width == pytest.approx(2.50 * 1.175 * math.sqrt(1 / 6 + 1 / 4), abs=0.02)
    assert family["B"].half_width == pytest.approx(2.50 * 1.175 * math.sqrt(1 / 6 + 1 / 5), abs=0.02)
    assert family["B"].excludes_zero
    assert not family["A"].excludes_zero


def test_a_balanced_layout_is_the_textbook_s():
    values = draw_layout(6, 4, np.random.default_rng(1))
    family = many_to_one(values)
    table = np.array(list(values.values()))
    residuals = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    std = math.sqrt((residuals**2).sum() / (5 * 3))
    assert family.pooled.std == pytest.approx(std)
    assert family.pooled.dof == 15
    half_width = simultaneous_quantile(0.95, equal_correlation(5), 15) * std * math.sqrt(2 / 4)
    assert [interval.half_width for interval in family.values()] == pytest.approx([half_width] * 5)
    assert [interval.mean for interval in family.values()] == pytest.approx((table[1:] - table[0]).mean(1))


def test_the_effects_of_seeds_cancel():
    random = np.random.default_rng(2)
    values = draw_layout(4, 5, random)
    shifted = {name: np.add(figures, np.arange(5) * 50) for name, figures in values.items()}
    ours, theirs = many_to_one(values), many_to_one(shifted)
    assert list(ours) == list(theirs)
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-9)


def test_two_methods_have_student_s_paired_interval():
    ours, base = [9.0, 18.9, 11.1, 14.0], [10.0, 20.0, 12.0, 14.5]
    family = many_to_one({"cross-entropy": base, "isda": ours})
    assert tuple(family["isda"]) == pytest.approx(paired_difference(ours, base))
    assert family.procedure == "Student"
    assert family.p_value("isda") == pytest.approx(stats.ttest_rel(ours, base).pvalue)


def test_missing_cells_are_those_of_least_squares():
    random = np.random.default_rng(3)
    values = draw_layout(5, 4, random)
    values["m1"][0] = None
    values["m3"][2] = math.nan
    values["cross-entropy"][3] = math.inf
    family = many_to_one(values)
    # Another parametrisation, by the normal equations: mean, effects that add up to zero.
    rows, figures = [], []
    for method, name in enumerate(values):
        for seed, figure in enumerate(values[name]):
            if figure is not None and math.isfinite(figure):
                of_method = np.eye(5)[method, :4] if method < 4 else -np.ones(4)
                of_seed = np.eye(4)[seed, :3] if seed < 3 else -np.ones(3)
                rows.append([1.0, *of_method, *of_seed])
                figures.append(figure)
    design, figures = np.array(rows), np.array(figures)
    inverse = np.linalg.inv(design.T @ design)
    solution = inverse @ design.T @ figures
    dof = len(figures) - design.shape[1]
    std = math.sqrt(((figures - design @ solution) ** 2).sum() / dof)
    effects = np.vstack([np.eye(4), -np.ones((1, 4))])
    contrasts = np.hstack([np.zeros((4, 1)), effects[1:] - effects[0], np.zeros((4, 3))])
    covariance = contrasts @ inverse @ contrasts.T
    scale = np.sqrt(np.diag(covariance))
    quantile = simultaneous_quantile(0.95, covariance / np.outer(scale, scale), dof)
    assert (family.pooled.dof, family.layout.missing) == (dof, 3)
    assert [interval.mean for interval in family.values()] == pytest.approx(contrasts @ solution)
    assert [interval.half_width for interval in family.values()] == pytest.approx(quantile * std * scale, rel=1e-5)


def test_methods_that_share_no_seed_with_the_control_are_left_out():
    values = {"cross-entropy": [1.0, 2.0, None, None], "a": [1.5, 2.0, None, None], "b": [None, None, 3.0, 4.0]}
    assert list(many_to_one(values | {"c": [None] * 4})) == ["a"]
    # Through a third method they can be compared: b - a on seed 2, a - cross-entropy on seeds 0 and 1.
    joined = many_to_one(values | {"a": [1.5, 2.0, 3.5, None]})
    assert joined["b"].mean == pytest.approx(-0.5 + 0.25)


def test_pairs_that_share_no_seeds_share_a_variance():
    random = np.random.default_rng(9)
    tables = {name: random.normal(size=(2, 4)) for name in "pqr"}
    values = {}
    for block, (name, table) in enumerate(tables.items()):
        for row, kind in zip(table, ("base", "isda"), strict=True):
            values[f"{name} {kind}"] = [None] * 4 * block + row.tolist() + [None] * 4 * (2 - block)
    family = compare_pairs(values, {name: (f"{name} isda", f"{name} base") for name in tables})
    gaps = {name: table[1] - table[0] for name, table in tables.items()}
    variance = np.mean([gap.var(ddof=1) for gap in gaps.values()]) / 2
    assert family.pooled.dof == 9
    assert family.pooled.std == pytest.approx(math.sqrt(variance))
    half_width = simultaneous_quantile(0.95, np.eye(3), 9) * math.sqrt(2 * variance / 4)
    for name, gap in gaps.items():
        assert tuple(family[name]) == pytest.approx((gap.mean(), half_width))


def test_one_seed_has_differences_but_no_intervals():
    family = many_to_one({"cross-entropy": [3.0], "a": [2.0], "b": [4.0]})
    assert [*family["a"], *family["b"]] == pytest.approx([-1.0, None, 1.0, None])
    assert family.p_value("a") is None


def test_equal_figures_differ_by_exactly_zero():
    family = many_to_one({"cross-entropy": [0.1, 0.2, 0.7], "a": [0.1, 0.2, 0.7], "b": [0.1, 0.2, 0.7]})
    assert dict(family) == {"a": (0.0, 0.0), "b": (0.0, 0.0)}
    assert family.p_value("a") == 1.0


def test_chosen_pairs_of_different_methods_are_independent_given_the_variance():
    values = draw_layout(6, 4, np.random.default_rng(4))
    names = list(values)
    family = compare_pairs(values, {"x": (names[1], names[0]), "y": (names[3], names[2]), "z": (names[5], names[4])})
    quantile = simultaneous_quantile(0.95, np.eye(3), 15)
    assert family["y"].half_width == pytest.approx(quantile * family.pooled.std * math.sqrt(2 / 4))
    assert family["y"].mean == pytest.approx(np.mean(np.subtract(values[names[3]], values[names[2]])))


def test_a_method_of_much_larger_variance_gets_its_own_interval():
    random = np.random.default_rng(6)
    values = draw_layout(6, 5, random)
    values["m3"] = np.add(values["m3"], [30.0, -25.0, 10.0, -40.0, 25.0]).tolist()
    family = many_to_one(values)
    assert list(family.separate) == ["m3"]
    assert family.separate["m3"] > 100
    own = paired_difference(values["m3"], values["cross-entropy"], 1 - 0.05 / 5)
    assert tuple(family["m3"]) == pytest.approx(own)
    # The others are pooled without it, with the rest of the error: 4 of 5 parts.
    others = many_to_one({name: values[name] for name in values if name != "m3"}, level=1 - 0.05 * 4 / 5)
    assert tuple(family["m1"]) == pytest.approx(others["m1"])


def test_equal_variances_are_seldom_told_apart():
    random = np.random.default_rng(7)
    layouts = [make_layout(draw_layout(8, 3, random)) for _ in range(200)]
    assert sum(bool(unequal_methods(layout)) for layout in layouts) <= 18  # 5% of 200, and 2.6 standard deviations


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match=r"control must be one of the methods \['a'\], got 'cross-entropy'"):
        many_to_one({"a": [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"every seed of every method, got \{'cross-entropy': 2, 'a': 3\} figures"):
        many_to_one({"cross-entropy": [1.0, 2.0], "a": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1, got 95"):
        many_to_one({"cross-entropy": [1.0, 2.0], "a": [1.0, 2.0]}, level=95)


DRAWS = 2000


def coverage(methods, seeds, spread, missing, random):
    """The share of drawn layouts whose intervals all cover the true differences."""
    truth = np.linspace(-2, 2, methods)
    names = ["cross-entropy", *(f"m{index}" for index in range(1, methods))]
    covered = 0
    for _ in range(DRAWS):
        table = (
            truth[:, None] + random.normal(0, 3, (1, seeds)) + random.normal(size=(methods, seeds)) * spread[:, None]
        )
        for cell in missing:
            table[cell] = math.nan
        family = many_to_one(dict(zip(names, table, strict=True)))
        true = dict(zip(names, truth - truth[0], strict=True))
        # A method that is set aside may share too few seeds with the control to have an interval.
        known = {name: interval for name, interval in family.items() if interval.half_width is not None}
        covered += all(abs(interval.mean - true[name]) <= interval.half_width for name, interval in known.items())
    return covered / DRAWS


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("methods", [4, 8, 12])
@pytest.mark.parametrize("missing", [(), ((0, 1), (2, 0), (3, 2))], ids=["whole", "missing"])
def test_simultaneous_coverage_is_the_level_under_equal_variances(methods, seeds, missing):
    random = np.random.default_rng([methods, seeds, len(missing)])
    assert 0.93 <= coverage(methods, seeds, np.ones(methods), missing, random) <= 0.97


UNEQUAL = {
    "moderate": lambda methods: np.linspace(0.5, 1.5, methods),
    "noisy control": lambda methods: np.r_[3.0, np.ones(methods - 1)],
    "noisy method": lambda methods: np.r_[np.ones(methods - 1), 10.0],
}
"""Standard deviations of the methods."""


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("methods", [4, 12])
@pytest.mark.parametrize("kind", UNEQUAL)
def test_simultaneous_coverage_under_unequal_variances(methods, seeds, kind, record_property):
    random = np.random.default_rng([methods, seeds])
    share = coverage(methods, seeds, UNEQUAL[kind](methods), (), random)
    record_property("coverage", share)
    print(f"{methods} methods, {seeds} seeds, {kind}: {100 * share:.1f}%")
