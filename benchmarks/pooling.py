"""Methods over several problems: pooled effects (meta-analysis), ranks (Friedman, Nemenyi, Holm) and sign tests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import chdtrc, fdtrc, ndtr, ndtri, stdtrit

from isda.lab.analysis.directions.atlas import holm
from isda.lab.report.statistics import LEVEL, Interval, check_level


class Effect(NamedTuple):
    """One method's effect over several problems, and how much it differs between them."""

    mean: float
    half_width: float | None
    problems: int
    between: float
    """Standard deviation of the true effects between problems, τ."""
    heterogeneity: float
    """I²: the share of the variance of observed effects that is not due to seeds, from 0 to 1."""
    p_heterogeneity: float
    """P-value of Cochran's Q, that the effects are equal."""

    @property
    def interval(self) -> Interval:
        """Of the mean effect."""
        return Interval(self.mean, self.half_width)


def pooled_effect(effects: Sequence[float], errors: Sequence[float], level: float = LEVEL) -> Effect:
    """Random-effects meta-analysis of one difference over several problems.

    Weights w_i = 1 / (τ² + σ_i²), with τ² by DerSimonian and Laird (1986). The interval is Student's with k - 1 degrees
    of freedom and the weighted variance of the effects, q / Σ w_i with q = Σ w_i (d_i - mean)² / (k - 1) (Hartung and
    Knapp, 2001), which holds with few problems. If they agree by chance, q is small: the interval is never narrower
    than the normal one of variance 1 / Σ w_i (Wiksten, Rücker and Schwarzer, 2016).

    Args:
        effects: the difference on each of k problems.
        errors: the standard error of each, at least 0.
        level: of the interval.

    Example:
        >>> effect = pooled_effect([-2.0, -1.0, -3.0, -2.2], [0.5, 0.4, 0.6, 0.5])
        >>> f"{effect.mean:.2f} ± {effect.half_width:.2f}, τ {effect.between:.2f}, I² {effect.heterogeneity:.2f}"
        '-1.98 ± 1.31, τ 0.68, I² 0.66'
    """
    check_level(level)
    if len(effects) != len(errors) or not effects:
        raise ValueError(f"effects and errors must be of the same problems, got {len(effects)} and {len(errors)}")
    if not all(map(math.isfinite, [*effects, *errors])) or min(errors) < 0:
        raise ValueError("effects and errors must be finite, errors at least 0, got others")
    found, variances, count = np.array(effects), np.square(errors), len(effects)
    if variances.min() == 0:
        # Runs that do not vary would have infinite weight: all problems count alike.
        variances = np.full(count, max(float(variances.mean()), np.finfo(np.float64).tiny))
    fixed = 1 / variances
    squares = float((fixed * (found - np.average(found, weights=fixed)) ** 2).sum())
    excess = squares - (count - 1)
    between = max(0.0, excess / float(fixed.sum() - (fixed**2).sum() / fixed.sum())) if count > 1 else 0.0
    weights = 1 / (variances + between)
    mean = float(np.average(found, weights=weights))
    half_width = None
    if count > 1:
        spread = float((weights * (found - mean) ** 2).sum()) / (count - 1)
        quantile = (1 + level) / 2
        widest = max(float(stdtrit(count - 1, quantile)) * math.sqrt(spread), float(ndtri(quantile)))
        half_width = widest / math.sqrt(float(weights.sum()))
    share = max(0.0, excess / squares) if squares > 0 else 0.0
    p = float(chdtrc(count - 1, squares)) if count > 1 else 1.0
    return Effect(mean, half_width, count, math.sqrt(between), share, p)


class Ranking(NamedTuple):
    """Mean ranks of methods over problems, 1 for the best, and the tests behind them."""

    ranks: dict[str, float]
    problems: int
    p: float
    """That all methods have the same rank: Friedman's statistic, Iman and Davenport's F."""
    critical_difference: float
    """Mean ranks that differ by more are told apart, of all pairs simultaneously (Nemenyi)."""
    p_control: dict[str, float]
    """By method, that it has the rank of the control, corrected by Holm; empty without a control."""


def friedman(figures: Mapping[str, Sequence[float]], control: str | None = None, level: float = LEVEL) -> Ranking:
    """Compare methods by their ranks on several problems (Demšar, 2006).

    χ² = 12 N / (k (k + 1)) (Σ R_j² - k (k + 1)² / 4) for N problems and k methods, divided by its correction for ties,
    F = (N - 1) χ² / (N (k - 1) - χ²); Nemenyi's critical difference is q sqrt(k (k + 1) / (6 N)).

    Args:
        figures: values by method, smaller is better, for the same problems in the same order.
        control: the method that others are compared to.
        level: of the critical difference.

    Example:
        >>> ranking = friedman({"a": [1.0, 2.0, 1.5, 4.0], "b": [2.0, 3.0, 2.0, 5.0], "c": [3.0, 2.5, 4.0, 6.0]}, "b")
        >>> ranking.ranks, round(ranking.p, 3), round(ranking.critical_difference, 2)
        ({'a': 1.0, 'b': 2.25, 'c': 2.75}, 0.007, 1.66)
    """
    from scipy.stats import studentized_range  # takes as long to import as all the rest

    check_level(level)
    ranks = mean_ranks(figures)
    if control is not None and control not in ranks:
        raise ValueError(f"control must be one of the methods {list(ranks)}, got {control!r}")
    if len(ranks) < 2:
        raise ValueError(f"ranks need at least 2 methods, got {list(ranks)}")
    methods, problems = len(ranks), len(next(iter(figures.values())))
    variance = methods * (methods + 1) / (6 * problems)
    ties = sum(count**3 - count for row in zip(*figures.values(), strict=True) for count in _equal_values(row))
    correction = 1 - ties / (problems * methods * (methods**2 - 1))
    spread = sum(rank**2 for rank in ranks.values()) - methods * (methods + 1) ** 2 / 4
    statistic = 2 / variance * spread / correction if correction else 0.0
    rest = problems * (methods - 1) - statistic
    dof = methods - 1, (methods - 1) * (problems - 1)
    p = 1.0 if dof[1] == 0 else 0.0 if rest <= 0 else float(fdtrc(*dof, (problems - 1) * statistic / rest))
    difference = float(studentized_range.ppf(level, methods, np.inf)) / math.sqrt(2) * math.sqrt(variance)
    others = [name for name in ranks if control is not None and name != control]
    tests = [2 * float(ndtr(-abs(ranks[name] - ranks[str(control)]) / math.sqrt(variance))) for name in others]
    return Ranking(ranks, problems, p, difference, dict(zip(others, holm(tests), strict=True)))


def _equal_values(values: Sequence[float]) -> list[int]:
    """How often each value occurs."""
    return list(Counter(values).values())


class Signs(NamedTuple):
    """Numbers of problems on which the first of two methods has the smaller, the larger and an equal value."""

    smaller: int
    larger: int
    equal: int

    @property
    def p(self) -> float:
        """Two-sided p-value of the sign test.

        min(1, 2 sum_{k <= min} binom(n, k) / 2^n) over the n problems that are not ties.

        Example:
            >>> Signs(smaller=9, larger=1, equal=2).p
            0.021484375
        """
        count = self.smaller + self.larger
        tail = sum(math.comb(count, k) for k in range(min(self.smaller, self.larger) + 1))
        return min(1.0, 2 * tail / 2**count)


def mean_ranks(figures: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The rank of each method, 1 for the smallest value, averaged over problems; ties share their ranks.

    Args:
        figures: values by method, for the same problems in the same order.

    Example:
        >>> mean_ranks({"a": [1.0, 5.0], "b": [2.0, 5.0], "c": [3.0, 4.0]})
        {'a': 1.75, 'b': 2.25, 'c': 2.0}
    """
    counts = {name: len(values) for name, values in figures.items()}
    if not counts or len(set(counts.values())) > 1 or 0 in counts.values():
        raise ValueError(f"figures must be of the same problems for every method, got {counts}")
    problems = list(zip(*figures.values(), strict=True))
    return {
        name: math.fsum(_rank(value, problem) for value, problem in zip(values, problems, strict=True)) / len(problems)
        for name, values in figures.items()
    }


def _rank(value: float, values: Sequence[float]) -> float:
    """1 + the number of smaller values + half the number of other equal values."""
    return 1 + sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2


def signs(ours: Sequence[float], others: Sequence[float]) -> Signs:
    """Count the problems on which one method has the smaller, the larger and an equal value.

    Example:
        >>> signs([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
        Signs(smaller=1, larger=1, equal=1)
    """
    if len(ours) != len(others):
        raise ValueError(f"ours and others must be of the same problems, got {len(ours)} and {len(others)} figures")
    pairs = list(zip(ours, others, strict=True))
    return Signs(
        sum(mine < other for mine, other in pairs),
        sum(mine > other for mine, other in pairs),
        sum(mine == other for mine, other in pairs),
    )
