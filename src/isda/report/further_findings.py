"""Sentences about likelihood and calibration, where they say something else than the figure of the comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping

from isda.engine.config import Figure
from isda.engine.run_records import is_number
from isda.report.statistics import LEVEL, Interval, paired_difference
from isda.report.summary import Comparison, MethodSummary
from isda.report.wording import number, plus_minus

NAMES = ("nll", "calibration")
"""Figures of result.json that have sentences."""
MOST_SENTENCES = 3
"""Of one figure: those of the largest differences."""


def further_findings(comparison: Comparison) -> list[str]:
    """A sentence for each method whose likelihood or calibration differs clearly although its error does not, or whose
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
    intervals = _differences(values, comparison.baseline.label)
    base = values[comparison.baseline.label]
    worth = []
    for method in comparison.methods[1:]:
        interval = intervals.get(method.label)
        reservation = "" if interval is None else _reservation(method, interval, figure, comparison)
        if interval is not None and reservation:
            means = _mean(values[method.label]), _mean(base)
            worth.append((abs(interval.mean), _sentence(method, interval, means, figure, comparison, reservation)))
    ranked = sorted(worth, key=lambda entry: -entry[0])[:MOST_SENTENCES]
    rest = len(worth) - len(ranked)
    more = [f"The {figure.title} of {rest} further methods differs likewise (see further metrics)."] if rest else []
    return [*(sentence for _, sentence in ranked), *more]


def _differences(values: Mapping[str, Mapping[int, float]], control: str) -> dict[str, Interval]:
    """Simultaneous intervals of the paired differences to a control."""
    base = values[control]
    common = {
        label: [seed for seed in by_seed if seed in base] for label, by_seed in values.items() if label != control
    }
    level = 1 - (1 - LEVEL) / max(1, len(common))
    return {
        label: paired_difference([values[label][seed] for seed in seeds], [base[seed] for seed in seeds], level)
        for label, seeds in common.items()
        if seeds
    }


def _reservation(method: MethodSummary, interval: Interval, figure: Figure, comparison: Comparison) -> str:
    """What the error of a method says instead; empty if it says the same, or if the figure does not differ clearly."""
    error, headline = method.difference, comparison.figure
    if not interval.excludes_zero or error is None or error.half_width is None:
        return ""
    if not error.excludes_zero:
        return f"although their {headline.title}s cannot be told apart"
    improves = (interval.mean < 0) == figure.lower_is_better
    better = (error.mean < 0) == headline.lower_is_better
    if improves == better:
        return ""
    return f"although its {headline.title} is {'lower' if error.mean < 0 else 'higher'}"


def _sentence(
    method: MethodSummary,
    interval: Interval,
    means: tuple[float, float],
    figure: Figure,
    comparison: Comparison,
    reservation: str,
) -> str:
    mine, base = (f"{number(mean, figure.digits)}{'%' if figure.unit == '%' else ''}" for mean in means)
    direction = "lower" if interval.mean < 0 else "higher"
    difference = plus_minus(*interval, figure.digits, sign=True)
    unit = f" {figure.difference_unit}" if figure.difference_unit else ""
    return (
        f"{method.label} has a {direction} {figure.title} than {comparison.baseline.label}, {mine} against {base} "
        f"({difference}{unit}, simultaneous {100 * LEVEL:.0f}% interval), {reservation}."
    )


def _values(method: MethodSummary, name: str) -> dict[int, float]:
    """A figure of the finished runs by seed, where it is a finite number."""
    stored = {run.seed: run.result.get(name) for run in method.runs if run.result is not None}
    return {seed: float(value) for seed, value in stored.items() if is_number(value) and math.isfinite(value)}


def _mean(values: Mapping[int, float]) -> float:
    return math.fsum(values.values()) / len(values)
