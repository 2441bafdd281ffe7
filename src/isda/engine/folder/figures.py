"""What tables, charts and pages show of a run: a task says it in words and keys, and the report needs no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Curve", "Figure", "results"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of a finished run. The first figure of a task is the one that methods are compared by."""

    name: str
    """Its key in result.json."""
    metric: str
    """The key in metrics.jsonl that it is made from, such as "test/error"."""
    title: str
    """As it stands in tables and sentences: "test error"."""
    unit: str = ""
    """"%" or a word; empty for a bare number."""
    digits: int = 2
    lower_is_better: bool = True
    averaged: bool = True
    """Whether it is the mean over the last epochs, as the paper reports errors, or the last epoch's value."""

    @property
    def heading(self) -> str:
        """The title with its unit, for the head of a column."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    @property
    def difference_unit(self) -> str:
        """What a difference of two is counted in: percentages differ by points."""
        return "points" if self.unit == "%" else self.unit


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One metric over the epochs."""

    metric: str
    """The key in metrics.jsonl."""
    title: str
    unit: str = ""
    logarithmic: bool = False
    """Whether a logarithmic axis suits it where it spans more than one and a half decades."""


def results(figures: Iterable[Figure], metrics: Sequence[Mapping[str, Any]], average_last: int) -> dict[str, float]:
    """The figures of a run from the lines of its metrics, as result.json has them.

    Of the first figure the last epoch's value stands beside its mean, under ``NAME_last``.

    Example:
        >>> error = Figure(name="error", metric="test/error", title="test error", unit="%")
        >>> results([error], [{"test/error": 4.0}, {"test/error": 2.0}], average_last=2)
        {'error': 3.0, 'error_last': 2.0}
    """
    found: dict[str, float] = {}
    for index, figure in enumerate(figures):
        last = metrics[-average_last:] if figure.averaged else metrics[-1:]
        values = [float(line[figure.metric]) for line in last if line.get(figure.metric) is not None]
        if not values:
            continue
        found[figure.name] = sum(values) / len(values)
        if index == 0:
            found[f"{figure.name}_last"] = values[-1]
    return found
