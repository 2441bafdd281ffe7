"""Figures of each class over seeds, from what the results of runs say under ``per_class``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from isda.engine.folder.reading import RunRecord, is_number
from isda.report.statistics import Interval, t_interval
from isda.report.summary import Comparison

__all__ = ["ClassFigure", "class_figures"]

KEY = "per_class"
MOST_FIGURES, MOST_CLASSES = 4, 200
"""More are not shown: a file that somebody sends must not make a page that no browser opens."""


@dataclass(frozen=True)
class ClassFigure:
    """One figure of every class, such as its intersection over union."""

    title: str
    classes: tuple[str, ...]
    left_out: int
    """Classes beyond those that are shown."""
    values: dict[str, dict[str, Interval]]
    """By the label of the method and the class: the mean over seeds and its interval, at 95% each."""

    @property
    def largest(self) -> float:
        """The largest number that a chart has to show."""
        return max(abs(one.mean) + (one.half_width or 0) for found in self.values.values() for one in found.values())

    @property
    def digits(self) -> int:
        """How many a table shows: shares have more than percentages."""
        return 3 if self.largest < 2 else 1


def class_figures(comparison: Comparison) -> list[ClassFigure]:
    """The figures per class of the finished runs of a comparison, in the order in which they first appear."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for method in comparison.methods:
        for run in method.runs:
            for title, name, value in _values(run):
                by_method = found.setdefault(title, {}).setdefault(name, {})
                by_method.setdefault(method.label, []).append(value)
    figures = []
    for title, classes in list(found.items())[:MOST_FIGURES]:
        shown = tuple(classes)[:MOST_CLASSES]
        values = {
            method.label: {
                name: t_interval(classes[name][method.label]) for name in shown if method.label in classes[name]
            }
            for method in comparison.methods
        }
        values = {label: found for label, found in values.items() if found}
        figures.append(ClassFigure(_title(title, comparison), shown, len(classes) - len(shown), values))
    return figures


def _title(key: str, comparison: Comparison) -> str:
    """The key as the task writes it in the title of a figure over all classes: "IoU" for "iou" beside "mean IoU"."""
    titles = [figure.title for figure in comparison.runs[0].config.figures]
    return next((title[-len(key) :] for title in titles if key and title.lower().endswith(key.lower())), key)


def _values(run: RunRecord) -> Iterator[tuple[str, str, float]]:
    """(figure, class, value) of one run, without whatever is none."""
    stored = (run.result or {}).get(KEY)
    for title, classes in stored.items() if isinstance(stored, dict) else ():
        for name, value in classes.items() if isinstance(classes, dict) else ():
            if is_number(value) and math.isfinite(value):
                yield title, name, float(value)
