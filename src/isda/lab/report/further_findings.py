"""Sentences about likelihood and calibration, where they say something else than the figure of the comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping

from isda.lab.engine.config import Figure
from isda.lab.engine.run_records import is_number
from isda.lab.report.statistics import LEVEL, Interval, many_to_one, paired_cells
from isda.lab.report.summary import Comparison, MethodSummary
from isda.lab.report.wording import number, plus_minus

NAMES = ("nll", "calibration")
"""Figures of result.json that have sentences."""
MOST_NAMED = 3
"""Methods that a sentence names: those of the largest differences."""


def further_findings(comparison: Comparison) -> list[str]:
    """Sentences about methods whose likelihood or calibration differs clearly although their error does not, or whose
    error differs the other way.

    The differences of a figure to the baseline have simultaneous 95% intervals, apart from those of other figures.
    """
    sentences = []
    for figure in comparison.runs[0].config.figures[1:]:
        if figure.name in NAMES:
            sentences += _of_figure(comparison, figure)
    return sentences


def _of_figure(comparison: Comparison, figure: Figure) -> list[str]:
    values = {method.label: _values(method, figure.name) for method in comparison.methods}
    if len(values) < 2 or not values[comparison.baseline.label]:
        return []
    intervals = many_to_one(paired_cells(values), comparison.baseline.label)
    groups: dict[tuple[str, str], list[tuple[str, Interval]]] = {}
    for method in comparison.methods[1:]:
        interval = intervals.shown(method.label)
        reservation = "" if interval is None else _reservation(method, interval, figure, comparison)
        if interval is not None and reservation:
            direction = "lower" if interval.mean < 0 else "higher"
            groups.setdefault((direction, reservation), []).append((method.label, interval))
    sentences = []
    for (direction, reservation), members in groups.items():
        members.sort(key=lambda member: -abs(member[1].mean))
        named = [
            f"{label} ({_text(values[label], figure)}; {_difference(interval, figure)})" for label, interval in members
        ]
        more = len(named) - MOST_NAMED
        named = [*named[:MOST_NAMED], f"{more} more"] if more > 0 else named
        subject = f"{', '.join(named[:-1])} and {named[-1]} have" if len(named) > 1 else f"{named[0]} has"
        base = f"{comparison.baseline.label} ({_text(values[comparison.baseline.label], figure)})"
        level = f"simultaneous {100 * LEVEL:.0f}% confidence intervals"
        sentences.append(f"{subject} a {direction} {figure.title} than {base}, {reservation} ({level}).")
    return sentences


def _reservation(method: MethodSummary, interval: Interval, figure: Figure, comparison: Comparison) -> str:
    """What the error of a method says instead; empty if it says the same, or if the figure does not differ clearly."""
    error, headline = method.difference, comparison.figure
    if not interval.excludes_zero or error is None or error.half_width is None:
        return ""
    if not error.excludes_zero:
        return f"although the {headline.title}s cannot be told apart"
    improves = (interval.mean < 0) == figure.lower_is_better
    better = (error.mean < 0) == headline.lower_is_better
    if improves == better:
        return ""
    return f"although the {headline.title} is {'lower' if error.mean < 0 else 'higher'}"


def _text(values: Mapping[int, float], figure: Figure) -> str:
    """The mean over seeds."""
    mean = math.fsum(values.values()) / len(values)
    return f"{number(mean, figure.digits)}{'%' if figure.unit == '%' else ''}"


def _difference(interval: Interval, figure: Figure) -> str:
    return f"{plus_minus(*interval, figure.digits, sign=True)} {figure.difference_unit}".strip()


def _values(method: MethodSummary, name: str) -> dict[int, float]:
    """A figure of the finished runs by seed, where it is a finite number."""
    stored = {run.seed: run.result[name] for run in method.runs if run.result is not None and name in run.result}
    return {seed: float(value) for seed, value in stored.items() if is_number(value) and math.isfinite(value)}
