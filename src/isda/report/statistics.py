"""What a handful of seeds can say: mean and standard deviation, Student's interval, the paired difference.

All of it for small samples: the standard deviation divides by n - 1, and one value has neither spread nor interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import stdtrit

__all__ = ["Interval", "MeanStd", "mean_std", "paired_difference", "t_interval"]


class MeanStd(NamedTuple):
    """Mean and sample standard deviation; one value has no standard deviation."""

    mean: float
    std: float | None


class Interval(NamedTuple):
    """The confidence interval mean ± half_width; one value has no half width: it needs at least 2 seeds."""

    mean: float
    half_width: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside; without a half width nothing can be excluded."""
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


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
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


def paired_difference(ours: Sequence[float], base: Sequence[float], level: float = 0.95) -> Interval:
    """Student's interval of the mean of ours_i - base_i, where i is the same seed on both sides.

    Pairing removes what a seed does to both (the data subset, the initial weights, the order of batches).

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
    broken = [value for value in values if not math.isfinite(value)]
    if broken:
        raise ValueError(f"{name} must be finite, got {broken[0]} among {len(values)}")
