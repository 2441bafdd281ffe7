"""How many seeds a comparison needs to tell a difference: from the residual variance of the seeds it has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chdtri, ndtr

from isda.lab.report.multivariate_t import scale_nodes, simultaneous_quantile
from isda.lab.report.statistics import Family, is_blind

POWER = 0.8
"""Probability with which a true difference is to be told from zero."""
CONFIDENCE = 0.8
"""Of the upper limit of the residual standard deviation."""
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Plan:
    """The seeds that a difference needs; `needed` and `at_most` are None beyond `MOST_SEEDS`.

    Attributes:
        difference: to tell from zero.
        methods: in the comparison, the control included.
        seeds: there are.
        std: residual standard deviation, estimated from `dof` degrees of freedom.
        dof: degrees of freedom.
        needed: seeds in all, if `std` is the true one; never so few that reports leave intervals out.
        at_most: seeds in all, if it is at its upper limit (`CONFIDENCE`, one-sided).
        level: simultaneous level of the intervals.
    """

    difference: float
    methods: int
    seeds: int
    std: float
    dof: int
    needed: int | None
    at_most: int | None
    level: float

    def sentence(self, unit: str) -> str:
        """The plan in words; ``unit`` such as "points"."""
        unit = unit.removesuffix("s") if self.difference == 1 else unit
        what = f"To tell a difference of {self.difference:g} {unit}".rstrip()
        goal = f"with a probability of {100 * POWER:.0f}%"
        if self.needed is None:
            return f"{what} {goal}, more than {MOST_SEEDS:,} seeds are needed."
        more = self.needed - self.seeds
        missing = f"{more} more than there are" if more > 0 else f"and there are {self.seeds}"
        bound = f"up to {self.at_most:,}" if self.at_most is not None else f"more than {MOST_SEEDS:,}"
        dof = f"{self.dof} degrees of freedom" if self.dof > 1 else "1 degree of freedom: plan again with more seeds"
        return (
            f"{what} {goal}, {self.needed} seeds are needed, {missing} ({bound} in all: the residual "
            f"standard deviation of {self.std:.3g} is estimated from {dof})."
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "difference": self.difference,
            "power": POWER,
            "level": self.level,
            "methods": self.methods,
            "seeds": self.seeds,
            "residual_std": self.std,
            "degrees_of_freedom": self.dof,
            "seeds_needed": self.needed,
            "seeds_needed_at_most": self.at_most,
        }


def check_planned(difference: float) -> None:
    """Raise ValueError unless a difference can be planned for."""
    if not 0 < difference < math.inf:
        raise ValueError(f"plan must be a positive difference, got {difference}")


def plan_seeds(family: Family, difference: float) -> Plan | None:
    """The number of seeds at which a true difference is told from zero; None without an estimate of the variance.

    The smallest s with P(|T| > c) >= `POWER`, where T is noncentral t with (m - 1)(s - 1) degrees of freedom and
    noncentrality δ / (σ sqrt(2 / s)), and c Dunnett's quantile for m methods. Reports show the intervals of s seeds
    (`isda.lab.report.statistics.is_blind`): a plan never asks for fewer.

    Args:
        family: the intervals of the seeds that there are.
        difference: δ, in the unit of the figure.

    Example:
        >>> from isda.lab.report.statistics import many_to_one
        >>> errors = {"cross-entropy": [9.0, 8.0, 9.5], "isda": [8.1, 7.2, 8.3], "mixup": [8.4, 7.1, 8.9]}
        >>> plan_seeds(many_to_one(errors), difference=0.3).needed
        9
    """
    check_planned(difference)
    layout = family.pooled
    if layout.std is None or len(layout.names) < 2:
        return None
    upper = layout.std * math.sqrt(layout.dof / float(chdtri(layout.dof, CONFIDENCE)))
    methods = len(layout.names)
    return Plan(
        difference=difference,
        methods=methods,
        seeds=layout.seed_count,
        std=layout.std,
        dof=layout.dof,
        needed=_fewest(methods, layout.std / difference, family.level),
        at_most=_fewest(methods, upper / difference, family.level),
        level=family.level,
    )


def _fewest(methods: int, std: float, level: float) -> int | None:
    """The fewest seeds, by bisection; ``std`` in units of the difference."""
    if power(methods, MOST_SEEDS, std, level) < POWER:
        return None
    # power(low) < POWER <= power(high), or the intervals of `low` seeds are not shown; one seed has none.
    low, high = _most_blind(methods, level), MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(methods, middle, std, level) >= POWER else (middle, high)
    return high


def _most_blind(methods: int, level: float) -> int:
    """The largest number of seeds whose intervals are too wide to be shown; 1 if there is none."""
    seeds = 2
    while is_blind(_quantile(methods, seeds, level), level, methods - 1):
        seeds += 1
    return seeds - 1


def _quantile(methods: int, seeds: int, level: float) -> float:
    """Dunnett's quantile of a balanced layout."""
    correlation = np.full((methods - 1, methods - 1), 0.5) + 0.5 * np.eye(methods - 1)
    return simultaneous_quantile(level, correlation, (methods - 1) * (seeds - 1))


def power(methods: int, seeds: int, std: float, level: float) -> float:
    """The probability that the interval of a difference of 1 excludes zero.

    Args:
        methods: m, the control included.
        seeds: s, at least 2.
        std: σ, in units of the difference.
        level: simultaneous level of the m - 1 intervals.

    Example:
        >>> round(power(methods=2, seeds=34, std=2**0.5, level=0.95), 3)     # paired t test, effect size 0.5
        0.808
    """
    if std == 0:
        return 1.0
    bound = _quantile(methods, seeds, level)
    shift = math.sqrt(seeds / 2) / std
    scales, weights = scale_nodes((methods - 1) * (seeds - 1))
    return float(weights @ (ndtr(shift - bound * scales) + ndtr(-shift - bound * scales)))
