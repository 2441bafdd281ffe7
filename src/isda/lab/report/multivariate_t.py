"""Two-sided simultaneous quantiles of Student's multivariate t distribution.

T_i = Z_i / S with Z normal of a given correlation matrix and ν S² chi-squared with ν degrees of freedom. Equal
correlations (Dunnett's intervals of a balanced layout) are integrated by quadrature, others by scipy's quasi-Monte
Carlo rule (Genz and Bretz, 2002) with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr, stdtr, stdtrit

Array = np.ndarray[Any, np.dtype[np.float64]]

NODES = 128
"""Nodes of each of the two Gauss-Legendre rules."""
TAIL = 1e-13
"""Probability left out at either end of a range of integration."""
TOLERANCE = 1e-9
"""Correlations that differ by less are equal."""


def simultaneous_p(statistic: float, correlation: Array, dof: int) -> float:
    """The probability that the largest of several |T_i| exceeds a value: a p-value adjusted for their number.

    The correlations of the T_i, (k, k), are of full rank.
    """
    if np.isinf(statistic):
        return 0.0
    return min(1.0, max(0.0, 1 - _inside(*_key(correlation), dof)(statistic)))


def simultaneous_quantile(level: float, correlation: Array, dof: int) -> float:
    """The bound that all |T_i| stay within with probability ``level``.

    Example:
        >>> many_to_one = np.full((4, 4), 0.5) + 0.5 * np.eye(4)
        >>> round(simultaneous_quantile(0.95, many_to_one, dof=20), 2)     # Dunnett (1964), Table II.a
        2.65
    """
    return _quantile(level, *_key(correlation), dof)


def _key(correlation: Array) -> tuple[bytes, int]:
    return np.ascontiguousarray(correlation, dtype=np.float64).tobytes(), len(correlation)


@lru_cache(maxsize=1024)
def _quantile(level: float, matrix: bytes, count: int, dof: int) -> float:
    student, bonferroni = (float(stdtrit(dof, 1 - (1 - level) / (2 * tests))) for tests in (1, count))
    if count == 1:
        return student
    inside = _inside(matrix, count, dof)
    # The margins allow for rounding.
    return float(brentq(lambda bound: inside(bound) - level, 0.99 * student, 1.01 * bonferroni, xtol=1e-7))


@lru_cache(maxsize=16)
def _inside(matrix: bytes, count: int, dof: int) -> Callable[[float], float]:
    """The probability that no |T_i| exceeds a bound, as a function of the bound."""
    if count == 1:
        return lambda bound: float(1 - 2 * stdtr(dof, -bound))
    correlation = np.frombuffer(matrix).reshape(count, count)
    apart = correlation[~np.eye(count, dtype=bool)]
    shared = max(0.0, float(apart.mean()))
    exact = _equally_correlated(count, shared, dof)
    if np.ptp(apart) < TOLERANCE and apart[0] > -TOLERANCE:
        return exact
    # Control variate: the rule's error at equal correlations is known, and nearly the same at those given.
    equal = np.full((count, count), shared) + (1 - shared) * np.eye(count)
    return lambda bound: exact(bound) + _by_rule(bound, correlation, dof) - _by_rule(bound, equal, dof)


def _by_rule(bound: float, correlation: Array, dof: int) -> float:
    from scipy.stats import multivariate_t  # takes as long to import as all the rest

    ends = np.full(len(correlation), bound)
    return float(multivariate_t.cdf(ends, shape=correlation, df=dof, lower_limit=-ends, random_state=0))


def _equally_correlated(count: int, shared: float, dof: int) -> Callable[[float], float]:
    """Z_i = sqrt(ρ) Y + sqrt(1 - ρ) E_i: given Y and S, the T_i are independent."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    low, high = (float(np.sqrt(chdtri(dof, tail) / dof)) for tail in (1 - TAIL, TAIL))
    scales = low + (high - low) * (nodes + 1) / 2
    # The density of S up to a constant, from its logarithm.
    logarithm = (dof - 1) * np.log(scales) - dof * scales**2 / 2
    of_scales = weights * np.exp(logarithm - logarithm.max())
    common = 8.5 * nodes
    of_common = weights * np.exp(-(common**2) / 2)
    joint = np.outer(of_scales / of_scales.sum(), of_common / of_common.sum())
    centre, spread = np.sqrt(shared) * common, np.sqrt(1 - shared)

    def inside(bound: float) -> float:
        ends = bound * scales[:, None]
        share = ndtr((ends - centre) / spread) - ndtr((-ends - centre) / spread)
        return float((joint * share**count).sum())

    return inside
