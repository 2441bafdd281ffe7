"""Statistics over a few seeds: mean and standard deviation, Student's interval, paired differences, and
mean ranks and sign tests over several problems.

The standard deviation divides by n - 1; a single value has neither a standard deviation nor an interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy.special import stdtrit

LEVEL = 0.95
"""Confidence level of all intervals of a comparison simultaneously."""


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


def level_of_each(intervals: int) -> float:
    """The level of each of several intervals such that LEVEL holds for all of them simultaneously.

    1 - (1 - LEVEL) / m for m intervals (Bonferroni).

    Example:
        >>> level_of_each(1), round(level_of_each(5), 3)
        (0.95, 0.99)
    """
    return LEVEL if intervals <= 1 else 1 - (1 - LEVEL) / intervals


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
    if not 0 < level < 1:
        raise ValueError(f"level must lie strictly between 0 and 1, got {level}")
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


def _check(name: str, values: Sequence[float]) -> None:
    if len(values) == 0:
        raise ValueError(f"{name} must hold at least one number, got none")
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value} among {len(values)}")


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
