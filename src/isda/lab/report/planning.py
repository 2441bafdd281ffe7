"""How many seeds a comparison needs to tell a difference: from the residual variance of the seeds it has."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from scipy.special import nctdtr

from isda.lab.report.multivariate_t import simultaneous_quantile
from isda.lab.report.statistics import Family

POWER = 0.8
"""Probability with which a true difference is to be told from zero."""
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Plan:
    """The seeds that a difference needs.

    Attributes:
        difference: to tell from zero.
        seeds: there are.
        residual_std: estimated from them.
        degrees_of_freedom: of the estimate.
        seeds_needed: in all; None beyond `MOST_SEEDS`.
    """

    difference: float
    seeds: int
    residual_std: float
    degrees_of_freedom: int
    seeds_needed: int | None

    def sentence(self, unit: str) -> str:
        """The plan in words; ``unit`` such as "points"."""
        unit = unit.removesuffix("s") if self.difference == 1 else unit
        needed = f"more than {MOST_SEEDS:,}" if self.seeds_needed is None else f"{self.seeds_needed:,}"
        return (
            f"To tell a difference of {self.difference:g} {unit} with a probability of {100 * POWER:.0f}%, {needed} "
            f"seeds are needed, and there are {self.seeds}."
        )


def check_planned(difference: float) -> None:
    """Raise ValueError unless a difference can be planned for."""
    if not 0 < difference < math.inf:
        raise ValueError(f"plan must be a positive difference, got {difference}")


def plan_seeds(family: Family, difference: float) -> Plan | None:
    """The number of seeds at which a true difference is told from zero; None without an estimate of the variance.

    The smallest s with P(|T| > c) >= `POWER`, where T is noncentral t with (m - 1)(s - 1) degrees of freedom and
    noncentrality δ / (σ sqrt(2 / s)), and c Dunnett's quantile for m methods.

    Example:
        >>> from isda.lab.report.statistics import many_to_one
        >>> errors = {"cross-entropy": [9.0, 8.0, 9.5], "isda": [8.1, 7.2, 8.3], "mixup": [8.4, 7.1, 8.9]}
        >>> plan_seeds(many_to_one(errors), difference=0.3).seeds_needed
        9
    """
    check_planned(difference)
    layout = family.pooled
    methods = len(layout.names)
    if layout.std is None or methods < 2:
        return None
    std, seeds = layout.std / difference, range(2, MOST_SEEDS + 1)
    position = bisect_left(seeds, POWER, key=lambda count: power(methods, count, std, family.level))
    needed = seeds[position] if position < len(seeds) else None
    return Plan(difference, layout.seed_count, layout.std, layout.dof, needed)


def _quantile(methods: int, seeds: int, level: float) -> float:
    """Dunnett's quantile of a balanced layout."""
    correlation = np.full((methods - 1, methods - 1), 0.5) + 0.5 * np.eye(methods - 1)
    return simultaneous_quantile(level, correlation, (methods - 1) * (seeds - 1))


def power(methods: int, seeds: int, std: float, level: float) -> float:
    """The probability that the interval of a difference of 1 excludes zero; ``std`` in units of that difference.

    Example:
        >>> round(power(methods=2, seeds=34, std=2**0.5, level=0.95), 3)     # paired t test, effect size 0.5
        0.808
    """
    if std == 0:
        return 1.0
    dof, bound, shift = (methods - 1) * (seeds - 1), _quantile(methods, seeds, level), math.sqrt(seeds / 2) / std
    # scipy finds no number for the other tail where it is far below 1e-100.
    return float(1 - nctdtr(dof, shift, bound) + np.nan_to_num(nctdtr(dof, shift, -bound)))
