"""Curves over epochs from a comparison's runs: a line per seed and the mean of a method's finished runs."""

from __future__ import annotations

from dataclasses import dataclass

from isda.engine.folder.reading import RunRecord
from isda.report.summary import Comparison

__all__ = ["Curves", "Line", "curves"]

Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Line:
    """One run's curve."""

    seed: int
    points: Points
    finished: bool


@dataclass(frozen=True)
class Curves:
    """One method's curves of one metric; `mean` may be empty."""

    label: str
    lines: tuple[Line, ...]
    mean: Points


def curves(comparison: Comparison, key: str) -> list[Curves]:
    """The curves of the methods that recorded the metric."""
    found = []
    for method in comparison.methods:
        recorded = [run for run in method.runs if run.curve(key)]
        if recorded:
            lines = tuple(Line(run.seed, run.curve(key), run.result is not None) for run in recorded)
            found.append(Curves(method.label, lines, _mean(recorded, key)))
    return found


def _mean(runs: list[RunRecord], key: str) -> Points:
    """The mean over finished runs, or over all if none is, at epochs that each of them has.

    An unfinished run would make the mean jump where it ends.
    """
    counted = [dict(run.curve(key)) for run in runs if run.result is not None] or [dict(run.curve(key)) for run in runs]
    common = sorted(set.intersection(*(set(curve) for curve in counted)))
    return [(epoch, sum(curve[epoch] for curve in counted) / len(counted)) for epoch in common]
