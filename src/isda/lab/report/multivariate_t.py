"""Two-sided simultaneous quantiles of Student's multivariate t distribution.

T_i = Z_i / S with Z normal of a given correlation matrix and ν S² chi-squared with ν degrees of freedom. Equal
correlations (Dunnett's many-to-one intervals of a balanced layout) are integrated by quadrature, others by a fixed
quasi-Monte Carlo rule (Genz and Bretz, 2002). Both are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtri, ndtr, ndtri, stdtr, stdtrit

Array = np.ndarray[Any, np.dtype[np.float64]]

NODES = 128
"""Nodes of each of the two Gauss-Legendre rules."""
POINTS = 16_381
"""Points of the quasi-Monte Carlo rule; an odd prime."""
TAIL = 1e-13
"""Probability left out at either end of a range of integration."""
TOLERANCE = 1e-9
"""Correlations that differ by less are equal."""


def simultaneous_p(statistic: float, correlation: Array, dof: int) -> float:
    """The probability that the largest of several |T_i| exceeds a value: a p-value adjusted for their number.

    Args:
        statistic: the value, at least 0.
        correlation: (k, k) correlations of the T_i, of full rank.
        dof: ν, at least 1.

    Example:
        >>> round(simultaneous_p(2.776, np.eye(1), dof=4), 3)
        0.05
    """
    if np.isinf(statistic):
        return 0.0
    return min(1.0, max(0.0, 1 - _inside(*_key(correlation), dof)(statistic)))


def simultaneous_quantile(level: float, correlation: Array, dof: int) -> float:
    """The bound that all |T_i| stay within with probability ``level``.

    Args:
        level: strictly between 0 and 1.
        correlation: (k, k) correlations of the T_i, of full rank.
        dof: ν, at least 1.

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
    lowest, highest = (float(stdtrit(dof, 1 - (1 - level) / (2 * tests))) for tests in (1, count))
    if count == 1:
        return lowest
    inside = _inside(matrix, count, dof)
    # Between Student's quantile and Bonferroni's; the margins allow for rounding.
    return float(brentq(lambda bound: inside(bound) - level, 0.99 * lowest, 1.01 * highest, xtol=1e-7))


@lru_cache(maxsize=16)
def _inside(matrix: bytes, count: int, dof: int) -> Callable[[float], float]:
    """The probability that no |T_i| exceeds a bound, as a function of the bound."""
    if count == 1:
        return lambda bound: float(1 - 2 * stdtr(dof, -bound))
    correlation = np.frombuffer(matrix).reshape(count, count)
    apart = correlation[~np.eye(count, dtype=bool)]
    if np.ptp(apart) < TOLERANCE and apart[0] > -TOLERANCE:
        return _equally_correlated(count, max(0.0, float(apart[0])), dof)
    # Control variate: the rule's error at equal correlations is known, and nearly the same at those given.
    shared = max(0.0, float(apart.mean()))
    given, equal = (_correlated(matrix, dof) for matrix in (correlation, _equal(count, shared)))
    exact = _equally_correlated(count, shared, dof)
    return lambda bound: exact(bound) + given(bound) - equal(bound)


def _equal(count: int, shared: float) -> Array:
    """(count, count) ones on the diagonal, ``shared`` elsewhere."""
    return np.full((count, count), shared) + (1 - shared) * np.eye(count)


def scale_nodes(dof: int) -> tuple[Array, Array]:
    """(NODES,) values of S, and the weights whose sum with a function of them is its expectation."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    low, high = (float(np.sqrt(chdtri(dof, tail) / dof)) for tail in (1 - TAIL, TAIL))
    scales = low + (high - low) * (nodes + 1) / 2
    # The density of S up to a constant, from its logarithm.
    logarithm = (dof - 1) * np.log(scales) - dof * scales**2 / 2
    density = weights * np.exp(logarithm - logarithm.max())
    return scales, density / density.sum()


def _equally_correlated(count: int, shared: float, dof: int) -> Callable[[float], float]:
    """Z_i = sqrt(ρ) Y + sqrt(1 - ρ) E_i: given Y and S, the T_i are independent."""
    scales, of_scales = scale_nodes(dof)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    common = 8.5 * nodes
    of_common = weights * np.exp(-(common**2) / 2)
    joint = np.outer(of_scales, of_common / of_common.sum())
    centre, spread = np.sqrt(shared) * common, np.sqrt(1 - shared)

    def inside(bound: float) -> float:
        ends = bound * scales[:, None]
        share = ndtr((ends - centre) / spread) - ndtr((-ends - centre) / spread)
        return float((joint * share**count).sum())

    return inside


def _correlated(correlation: Array, dof: int) -> Callable[[float], float]:
    """Genz's sequential conditioning: uniform numbers choose S, then each Z_i within its bounds given those before."""
    count = len(correlation)
    factor = np.linalg.cholesky(correlation)
    uniform = _lattice(count)
    scales = np.sqrt(chdtri(dof, uniform[:, 0]) / dof)

    def inside(bound: float) -> float:
        ends, probability = bound * scales, np.ones(POINTS)
        chosen = np.zeros((POINTS, count))
        for row in range(count):
            centre = chosen[:, :row] @ factor[row, :row]
            low, high = (ndtr((end - centre) / factor[row, row]) for end in (-ends, ends))
            probability *= high - low
            if row + 1 < count:
                within = low + uniform[:, row + 1] * (high - low)
                chosen[:, row] = ndtri(np.clip(within, TAIL, 1 - TAIL))
        return float(probability.mean())

    return inside


def _lattice(dimensions: int) -> Array:
    """(POINTS, dimensions) points of the unit cube: multiples of square roots of primes, folded (tent transform)."""
    primes: list[int] = []
    candidate = 2
    while len(primes) < dimensions:
        if all(candidate % prime for prime in primes):
            primes.append(candidate)
        candidate += 1
    steps = np.arange(1, POINTS + 1)[:, None] * np.sqrt(np.array(primes, dtype=np.float64))
    return np.clip(np.abs(2 * (steps % 1) - 1), TAIL, 1 - TAIL)
