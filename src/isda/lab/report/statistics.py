"""Statistics over a few seeds: mean and standard deviation, Student's interval, and simultaneous intervals of the
differences between several methods.

Methods are compared in the two-way layout of methods x paired seeds (`report.layout`): one residual variance is
pooled over all methods, and the intervals of all differences to a control hold simultaneously (Dunnett, 1955). The
standard deviation divides by n - 1; a single value has neither a standard deviation nor an interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from isda.lab.report.layout import NEGLIGIBLE, Cells, Layout, make_layout, unequal_methods
from isda.lab.report.multivariate_t import Array, simultaneous_p, simultaneous_quantile

LEVEL = 0.95
"""Confidence level of all intervals of a family simultaneously."""


class MeanStd(NamedTuple):
    """Mean and sample standard deviation (None for a single value)."""

    mean: float
    std: float | None


class Interval(NamedTuple):
    """The confidence interval mean ± half_width (None for a single value)."""

    mean: float
    half_width: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside; False without a half width."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def mean_std(values: Sequence[float]) -> MeanStd:
    """Mean and standard deviation, sqrt(sum (x - mean)^2 / (n - 1)).

    Example:
        >>> mean_std([1.0, 2.0, 3.0])
        MeanStd(mean=2.0, std=1.0)
    """
    _check("values", values)
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return MeanStd(mean, None)
    return MeanStd(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)))


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Student's interval of the mean, mean ± t_{n-1, (1 + level) / 2} std / sqrt(n).

    Example:
        >>> interval = t_interval([1.0, 2.0, 3.0])
        >>> round(interval.half_width, 3)
        2.484
    """
    check_level(level)
    mean, std = mean_std(values)
    if std is None:
        return Interval(mean, None)
    return Interval(mean, float(stdtrit(len(values) - 1, (1 + level) / 2)) * std / math.sqrt(len(values)))


def paired_difference(ours: Sequence[float], base: Sequence[float], level: float = LEVEL) -> Interval:
    """Student's interval of the mean of ours_i - base_i, where i is the same seed on both sides.

    Pairing removes the effects that a seed has on both (data subset, initial weights, order of batches).

    Example:
        >>> paired_difference([4.0, 5.0, 7.0], [5.0, 6.0, 8.0])
        Interval(mean=-1.0, half_width=0.0)
    """
    _check("ours", ours)
    _check("base", base)
    if len(ours) != len(base):
        raise ValueError(f"ours and base must be of the same seeds, got {len(ours)} and {len(base)} values")
    return t_interval([mine - other for mine, other in zip(ours, base, strict=True)], level)


def check_level(level: float) -> None:
    """Raise ValueError unless a level lies strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level}")


def _check(name: str, values: Sequence[float]) -> None:
    if len(values) == 0:
        raise ValueError(f"{name} must hold at least one number, got none")
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value} among {len(values)}")


@dataclass(eq=False)
class Family(dict[str, Interval]):
    """Simultaneous confidence intervals of several differences, by name.

    Attributes:
        level: the probability that all intervals cover their differences.
        procedure: "Dunnett", "multivariate t", or "Student" for a single difference.
        layout: the methods x seeds that it is made from.
        separate: methods whose variance is not pooled, each with its ratio to that of the others. Their differences
            have Student's paired intervals, corrected by Bonferroni.
        errors: by name, the standard error of a difference that has an interval.
        tests: by name, how to find the p-value.
    """

    level: float
    procedure: str
    layout: Layout = field(repr=False)
    separate: dict[str, float]
    errors: dict[str, float] = field(default_factory=dict, repr=False)
    tests: dict[str, Callable[[], float]] = field(default_factory=dict, repr=False)

    @cached_property
    def pooled(self) -> Layout:
        """The layout of the methods that share one variance."""
        return self.layout.without(*self.separate)

    def p_value(self, name: str) -> float | None:
        """The p-value of a difference, adjusted for their number; None without an interval."""
        return self.tests[name]() if name in self.tests else None

    def as_json(self) -> dict[str, Any]:
        """How the intervals were made, and all of them, as plain values."""
        return {
            "procedure": self.procedure,
            "level": self.level,
            "methods": len(self.layout.names),
            "seeds": self.layout.seed_count,
            "missing": self.layout.missing,
            "residual_std": self.pooled.std,
            "degrees_of_freedom": self.pooled.dof,
            "separate_variances": self.separate,
            "differences": {name: one._asdict() | {"p": self.p_value(name)} for name, one in self.items()},
        }


def paired_cells(values: Mapping[str, Mapping[Any, float]]) -> dict[str, list[float | None]]:
    """Figures by method and seed as `many_to_one` takes them: in the order of all seeds, None where one is missing.

    A seed is an integer; where a seed means something else for other methods, a pair of a name and the seed.

    Example:
        >>> paired_cells({"a": {0: 1.0, 2: 3.0}, "b": {2: 4.0}})
        {'a': [1.0, 3.0], 'b': [None, 4.0]}
    """
    seeds = sorted({seed for by_seed in values.values() for seed in by_seed})
    return {name: [by_seed.get(seed) for seed in seeds] for name, by_seed in values.items()}


def many_to_one(values: Cells, control: str = "cross-entropy", level: float = LEVEL, *, paired: bool = True) -> Family:
    """Dunnett's simultaneous intervals of the differences of all methods to a control.

    y_ms = a_m + b_s + e_ms is fitted by least squares to all figures; a_m - a_control ± c σ sqrt(v_m), with σ² the
    residual variance of all methods, v_m from least squares (2 / s for s seeds without missing figures) and c the
    quantile of the largest |t| of all differences.

    Args:
        values: figures by method, in the order of seeds; None or NaN where a run is missing or diverged.
        control: the method that others are compared to.
        level: the probability that all intervals cover their differences.
        paired: whether figures at the same place are of the same seed. Otherwise seeds have no effect (one-way layout,
            `scipy.stats.dunnett`), and methods may have different numbers of figures.

    Returns:
        The interval of each other method by name, without methods that share no seed with the control, directly or
        through others.

    Example:
        >>> errors = {"cross-entropy": [9.0, 8.0, 9.5], "isda": [8.1, 7.2, 8.3], "mixup": [8.4, 7.1, 8.9]}
        >>> differences = many_to_one(errors)
        >>> {name: f"{mean:.2f} ± {half_width:.2f}" for name, (mean, half_width) in differences.items()}
        {'isda': '-0.97 ± 0.49', 'mixup': '-0.70 ± 0.49'}
    """
    if control not in values:
        raise ValueError(f"control must be one of the methods {list(values)}, got {control!r}")
    pairs = {name: (name, control) for name in values if name != control}
    return compare_pairs(values, pairs, level, paired=paired, procedure="Dunnett")


def compare_pairs(
    values: Cells,
    pairs: Mapping[str, tuple[str, str]],
    level: float = LEVEL,
    *,
    paired: bool = True,
    procedure: str = "multivariate t",
) -> Family:
    """Simultaneous intervals of chosen differences in one layout of methods x seeds; see `many_to_one`.

    Args:
        values: figures by method, in the order of seeds; None or NaN where a run is missing or diverged.
        pairs: the two methods of each difference, first - second. Differences must not depend on each other
            linearly; pairs that share no seeds share a variance, too.
        level: the probability that all intervals cover their differences.
        paired: see `many_to_one`.
        procedure: what tables call it.
    """
    check_level(level)
    layout = make_layout(values, paired=paired)
    contrasts = {name: found for name, pair in pairs.items() if (found := layout.contrast(*pair)) is not None}
    separate = unequal_methods(layout)
    family = Family(level, procedure if len(contrasts) > 1 else "Student", layout, separate)
    together = {name: pairs[name] for name in contrasts if not separate.keys() & set(pairs[name])}
    _add_intervals(family, family.pooled, together, len(contrasts))
    for name in [name for name in contrasts if name not in together]:
        others = (other for other in layout.names if other not in pairs[name])
        _add_intervals(family, layout.without(*others), {name: pairs[name]}, len(contrasts))
    return family


def _add_intervals(family: Family, layout: Layout, pairs: Mapping[str, tuple[str, str]], count: int) -> None:
    """Add the intervals of some of ``count`` differences, which share the family's error by Bonferroni."""
    known = {name: found for name, pair in pairs.items() if (found := layout.contrast(*pair)) is not None}
    if not known:
        return
    contrasts = np.stack(list(known.values()))
    means = [_rounded(float(mean), layout) for mean in contrasts @ layout.solution]
    if layout.std is None:
        family.update({name: Interval(mean, None) for name, mean in zip(known, means, strict=True)})
        return
    covariance = contrasts @ layout.inverse @ contrasts.T
    scales = np.sqrt(np.diag(covariance))
    correlation = np.round(covariance / np.outer(scales, scales), 12)
    share = len(known) / count
    quantile = simultaneous_quantile(1 - (1 - family.level) * share, correlation, layout.dof)
    for name, mean, scale in zip(known, means, scales, strict=True):
        error = layout.std * float(scale)
        statistic = 0.0 if mean == 0 else math.inf if error == 0 else abs(mean) / error
        family[name] = Interval(mean, quantile * error)
        family.errors[name] = error
        family.tests[name] = partial(_adjusted_p, statistic, correlation, layout.dof, share)


def _adjusted_p(statistic: float, correlation: Array, dof: int, share: float) -> float:
    return min(1.0, simultaneous_p(statistic, correlation, dof) / share)


def _rounded(mean: float, layout: Layout) -> float:
    return 0.0 if abs(mean) < NEGLIGIBLE * float(np.abs(layout.values).max()) else mean
