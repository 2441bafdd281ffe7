"""The arithmetic of a grid: what lies beyond its ends, and what between two of its values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["between", "beyond", "by_ratio", "thinned"]

DIGITS = 3
"""Significant ones of a value that is made: it is the name of a folder."""
EVEN = 0.02
"""Steps that differ by less than this share are even."""
CLOSEST = 0.02
"""Values that differ by less than this share are not worth two runs."""


def by_ratio(values: Sequence[float]) -> bool:
    """Whether a grid goes by ratios rather than by differences: unless only its differences are even.

    Example:
        >>> by_ratio([0.5, 1, 2]), by_ratio([0.1, 0.25, 0.5, 0.75, 1]), by_ratio([0, 0.1, 0.2])
        (True, True, False)
    """
    above = [value for value in values if value > 0]
    if len(above) < 2 or min(values) < 0:
        return False
    if _even([high / low for low, high in pairwise(above)]) and len(above) == len(values):
        return True
    return not _even([high - low for low, high in pairwise(values)])


def beyond(values: Sequence[float], edge: float, *, upper: bool, whole: bool = False) -> float | None:
    """One step beyond an edge, by the mean ratio or the mean difference of a grid's values; None if there is none.

    Example:
        >>> beyond([0.5, 1, 2], 2, upper=True), beyond([0, 0.1, 0.2], 0.2, upper=True)
        (4.0, 0.3)
        >>> beyond([0.1, 0.25, 0.5, 0.75, 1], 0.1, upper=False)
        0.0562
    """
    if len(values) < 2:
        return None
    if by_ratio(values):
        above = [value for value in values if value > 0]
        ratio = (above[-1] / above[0]) ** (1 / (len(above) - 1))
        further = edge * ratio if upper else edge / ratio
    else:
        step = (values[-1] - values[0]) / (len(values) - 1)
        further = edge + step if upper else edge - step
    found = _rounded(further, whole)
    return found if math.isfinite(found) and found != edge else None


def between(one: float, two: float, *, whole: bool = False) -> float | None:
    """The middle of two values, of their logarithms where both are positive; None if they are too close.

    Example:
        >>> between(0.5, 2), between(0, 0.1), between(3, 4, whole=True)
        (1.0, 0.05, None)
    """
    middle = math.sqrt(one * two) if min(one, two) > 0 else (one + two) / 2
    found = _rounded(middle, whole)
    scale = max(abs(one), abs(two))
    near = min(abs(found - one), abs(found - two))
    return found if near > 0 and near >= CLOSEST * scale else None


def thinned(count: int, wanted: int) -> list[int]:
    """Positions of ``wanted`` of ``count`` values in order, evenly spread, both ends among them.

    Example:
        >>> thinned(5, 3), thinned(5, 1), thinned(3, 5)
        ([0, 2, 4], [2], [0, 1, 2])
    """
    if wanted >= count:
        return list(range(count))
    if wanted == 1:
        return [count // 2]
    return [round(index * (count - 1) / (wanted - 1)) for index in range(wanted)]


def _even(steps: Sequence[float]) -> bool:
    return max(steps) - min(steps) <= EVEN * max(map(abs, steps))


def _rounded(value: float, whole: bool) -> float:
    return round(value) if whole else float(f"{value:.{DIGITS}g}")
