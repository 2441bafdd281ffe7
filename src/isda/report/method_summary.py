"""One method in a comparison: its figures over seeds, its difference to the baseline, and ISDA's part in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isda.engine.folder.reading import RunRecord
from isda.report.statistics import Interval, MeanStd, paired_difference

__all__ = ["LEVEL", "MethodSummary", "isda_part", "level_of_each"]

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


@dataclass(frozen=True)
class MethodSummary:
    """One method in a comparison; `values` of the headline figure and `differences` to the baseline by seed."""

    label: str
    runs: tuple[RunRecord, ...]
    values: dict[int, float]
    value: MeanStd | None
    differences: dict[int, float]
    difference: Interval | None
    from_isda: Interval | None = None
    """See `isda_part`."""

    @property
    def unfinished(self) -> tuple[RunRecord, ...]:
        """The runs without a result."""
        return tuple(run for run in self.runs if run.result is None)


def isda_part(method: MethodSummary, methods: Sequence[MethodSummary], level: float) -> Interval | None:
    """The figure with "+isda" - the figure without it, over the seeds that both have finished.

    None where ``methods`` do not hold exactly one like ``method`` without ISDA, with the same options of its own.
    """
    name, options = method.runs[0].method, method.runs[0].method_options
    if not name.endswith(SUFFIX):
        return None
    alone = [
        other
        for other in methods
        if other.runs[0].method == name.removesuffix(SUFFIX)
        and all(options.get(key) == value for key, value in other.runs[0].method_options.items())
    ]
    if len(alone) != 1:
        return None
    ours, theirs = method.values, alone[0].values
    common = [seed for seed in ours if seed in theirs]
    return paired_difference([ours[s] for s in common], [theirs[s] for s in common], level) if common else None
