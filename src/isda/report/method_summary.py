"""One method in a comparison: its errors over seeds, its difference to the baseline, and ISDA's part in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isda.report.runs import RunRecord
from isda.report.statistics import Interval, MeanStd, paired_difference

__all__ = ["LEVEL", "MethodSummary", "isda_part"]

LEVEL = 0.95
"""Of every interval in tables and figures."""

SUFFIX = "+isda"


@dataclass(frozen=True)
class MethodSummary:
    """One method in a comparison; `errors` (in percent) and `differences` to the baseline (in points) by seed."""

    label: str
    runs: tuple[RunRecord, ...]
    errors: dict[int, float]
    error: MeanStd | None
    differences: dict[int, float]
    difference: Interval | None
    from_isda: Interval | None = None
    """See `isda_part`."""

    @property
    def unfinished(self) -> tuple[RunRecord, ...]:
        """The runs without a result."""
        return tuple(run for run in self.runs if run.result is None)


def isda_part(method: MethodSummary, methods: Sequence[MethodSummary]) -> Interval | None:
    """Error with "+isda" - error without it, in points, over the seeds that both have finished.

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
    ours, theirs = method.errors, alone[0].errors
    common = [seed for seed in ours if seed in theirs]
    return paired_difference([ours[s] for s in common], [theirs[s] for s in common], LEVEL) if common else None
