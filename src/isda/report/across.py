"""Methods over several problems: mean ranks and sign tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


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
