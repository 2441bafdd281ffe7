"""Several methods on several problems: mean ranks, and the sign test of one method against another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["Signs", "mean_ranks", "signs"]


class Signs(NamedTuple):
    """On how many problems the first of two methods has the smaller figure, the larger one, and the same."""

    smaller: int
    larger: int
    equal: int

    @property
    def p(self) -> float:
        """Two-sided probability of so uneven a count, or a more uneven one, if either sign were as likely.

        min(1, 2 sum_{k <= min} binom(n, k) / 2^n) over the n problems that are not ties.

        Example:
            >>> Signs(smaller=9, larger=1, equal=2).p
            0.021484375
        """
        count = self.smaller + self.larger
        tail = sum(math.comb(count, k) for k in range(min(self.smaller, self.larger) + 1))
        return min(1.0, 2 * tail / 2**count)


def mean_ranks(figures: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The rank of each method, 1 for the smallest figure, averaged over problems; ties share their ranks.

    Args:
        figures: of each method, one for each problem, in one order.

    Example:
        >>> mean_ranks({"a": [1.0, 5.0], "b": [2.0, 5.0], "c": [3.0, 4.0]})
        {'a': 1.75, 'b': 2.25, 'c': 2.0}
    """
    counts = {name: len(values) for name, values in figures.items()}
    if not counts or len(set(counts.values())) > 1 or 0 in counts.values():
        raise ValueError(f"figures must be of the same problems for every method, got {counts}")
    columns = list(zip(*figures.values(), strict=True))
    ranks = [[_rank(value, column) for column in columns for value in [column[place]]] for place in range(len(figures))]
    return {name: math.fsum(own) / len(own) for name, own in zip(figures, ranks, strict=True)}


def _rank(value: float, column: Sequence[float]) -> float:
    """1 + how many are smaller + half of how many others are equal."""
    return 1 + sum(other < value for other in column) + (sum(other == value for other in column) - 1) / 2


def signs(ours: Sequence[float], others: Sequence[float]) -> Signs:
    """Count the problems on which one method has the smaller figure, the larger one, and the same.

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
