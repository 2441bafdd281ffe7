"""One method in a comparison: its figure over seeds, its difference to the baseline, and ISDA's part in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from isda.engine.folder.reading import RunRecord
from isda.report.statistics import Interval, MeanStd, paired_difference

__all__ = [
    "LEVEL",
    "MethodSummary",
    "interval_count",
    "isda_part",
    "level_of_each",
    "named_in",
    "of_method",
    "own_settings",
]

LEVEL = 0.95
"""Of all intervals of a comparison together."""

SUFFIX = "+isda"


def level_of_each(intervals: int) -> float:
    """The level of one of several intervals such that all of them hold together with probability LEVEL or more.

    1 - (1 - LEVEL) / m for m intervals (Bonferroni).

    Example:
        >>> level_of_each(1), round(level_of_each(5), 3)
        (0.95, 0.99)
    """
    return LEVEL if intervals <= 1 else 1 - (1 - LEVEL) / intervals


def of_method(run: RunRecord) -> list[str]:
    """The settings, beside the options, that the run's task says are the method's."""
    return named_in(run, "of_method")


def named_in(run: RunRecord, field: str) -> list[str]:
    """The settings of a run that one of its fields lists."""
    named = run.stored.get(field)
    return [key for key in run.stored if isinstance(named, list) and key in named]


def own_settings(run: RunRecord) -> dict[str, Any]:
    """What a method is beside its name: its options, and the settings that are the method's."""
    return run.method_options | {key: run.stored[key] for key in of_method(run)}


@dataclass(frozen=True)
class MethodSummary:
    """One method in a comparison; `values` of the headline figure and `differences` to the baseline by seed."""

    label: str
    runs: tuple[RunRecord, ...]
    values: dict[int, float]
    value: MeanStd | None
    differences: dict[int, float] = field(default_factory=dict)
    difference: Interval | None = None
    from_isda: Interval | None = None
    """See `isda_part`."""

    @property
    def unfinished(self) -> tuple[RunRecord, ...]:
        """The runs without a result."""
        return tuple(run for run in self.runs if run.result is None)

    def common_seeds(self, other: MethodSummary) -> list[int]:
        """The seeds that both have finished."""
        return [seed for seed in self.values if seed in other.values]

    def difference_to(self, other: MethodSummary, level: float) -> Interval | None:
        """This method's figure - the other's on common seeds; None without any."""
        seeds = self.common_seeds(other)
        if not seeds:
            return None
        return paired_difference([self.values[seed] for seed in seeds], [other.values[seed] for seed in seeds], level)


def isda_part(method: MethodSummary, methods: Sequence[MethodSummary], level: float) -> Interval | None:
    """The figure with "+isda" - the figure without it, over the seeds that both have finished.

    None where ``methods`` do not hold exactly one like ``method`` without ISDA, with the same settings of its own.
    """
    alone = _without_isda(method, methods)
    return method.difference_to(alone, level) if alone else None


def interval_count(methods: Sequence[MethodSummary]) -> int:
    """How many intervals a comparison has, finished or not; the first method is the baseline.

    One per further method, and one per part of ISDA that is not such a difference already.
    """
    pairs = [(method, _without_isda(method, methods)) for method in methods]
    parts = [pair for pair in pairs if pair[1] is not None and not any(one is methods[0] for one in pair)]
    return len(methods) - 1 + len(parts)


def _without_isda(method: MethodSummary, methods: Sequence[MethodSummary]) -> MethodSummary | None:
    name, settings = method.runs[0].method, own_settings(method.runs[0])
    if not name.endswith(SUFFIX):
        return None
    alone = [
        other
        for other in methods
        if other.runs[0].method == name.removesuffix(SUFFIX)
        and all(settings.get(key) == value for key, value in own_settings(other.runs[0]).items())
    ]
    return alone[0] if len(alone) == 1 else None
