"""Metrics of each class over seeds, and their bar chart as SVG.

A task writes ``"per_class": {"iou": {"road": 0.97, "train": null}}`` into result.json. The values are not trusted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from isda.lab.engine.run_records import RunRecord, is_number
from isda.lab.report.charts import Axis, classes, frame, marker, vertical_grid
from isda.lab.report.markup import Markup, tag
from isda.lab.report.statistics import Interval, t_interval
from isda.lab.report.summary import Comparison
from isda.lab.report.wording import plus_minus

KEY = "per_class"
MOST_FIGURES, MOST_CLASSES = 4, 200
"""More are not shown: an untrusted file must not make a page that no browser opens."""
MOST_BARS = 24
"""Classes of a chart; the table has all that are shown."""


@dataclass(frozen=True)
class ClassFigure:
    """One metric of every class, such as its intersection over union."""

    title: str
    classes: tuple[str, ...]
    left_out: int
    """Number of classes that are not shown."""
    values: dict[str, dict[str, Interval]]
    """By method and class: the mean over seeds and its 95% interval."""

    def restricted(self, classes: Collection[str]) -> ClassFigure:
        """The same figure of some of its classes."""
        kept = {label: {name: by[name] for name in by if name in classes} for label, by in self.values.items()}
        return replace(self, classes=tuple(name for name in self.classes if name in classes), values=kept)

    @property
    def largest(self) -> float:
        """The largest absolute value of the chart."""
        intervals = [interval for by_class in self.values.values() for interval in by_class.values()]
        return max(abs(interval.mean) + (interval.half_width or 0) for interval in intervals)

    @property
    def digits(self) -> int:
        """Digits in a table: more for shares than for percentages."""
        return 3 if self.largest < 2 else 1


def class_figures(comparison: Comparison) -> list[ClassFigure]:
    """The metrics per class of the finished runs of a comparison, in order of appearance."""
    recorded: dict[str, dict[str, dict[str, list[float]]]] = {}
    for method in comparison.methods:
        for run in method.runs:
            for title, name, value in _values(run):
                by_method = recorded.setdefault(title, {}).setdefault(name, {})
                by_method.setdefault(method.label, []).append(value)
    figures = []
    for title, by_class in list(recorded.items())[:MOST_FIGURES]:
        shown = tuple(by_class)[:MOST_CLASSES]
        values = {
            method.label: {
                name: t_interval(by_class[name][method.label]) for name in shown if method.label in by_class[name]
            }
            for method in comparison.methods
        }
        values = {label: intervals for label, intervals in values.items() if intervals}
        figures.append(ClassFigure(_title(title, comparison), shown, len(by_class) - len(shown), values))
    return figures


def drawn_classes(figure: ClassFigure, *, largest: bool) -> tuple[str, ...]:
    """The classes of the chart, at most MOST_BARS: those with the largest or smallest mean over methods."""

    def mean(name: str) -> float:
        means = [values[name].mean for values in figure.values.values() if name in values]
        return (-1 if largest else 1) * sum(means) / len(means)

    chosen = set(sorted(figure.classes, key=mean)[:MOST_BARS])
    return tuple(name for name in figure.classes if name in chosen)


def _title(key: str, comparison: Comparison) -> str:
    """The key as spelt in the title of a metric over all classes: "IoU" for "iou" beside "mean IoU"."""
    titles = [figure.title for figure in comparison.runs[0].config.figures]
    return next((title[-len(key) :] for title in titles if key and title.lower().endswith(key.lower())), key)


def _values(run: RunRecord) -> Iterator[tuple[str, str, float]]:
    """(metric, class, value) of one run; invalid values are skipped."""
    stored = (run.result or {}).get(KEY)
    for title, by_class in stored.items() if isinstance(stored, dict) else ():
        for name, value in by_class.items() if isinstance(by_class, dict) else ():
            if is_number(value) and math.isfinite(value):
                yield title, name, float(value)


TOP, BAR, GAP, BOTTOM, RIGHT = 6, 11, 9, 26, 16
CHARACTER = 6.8
"""Upper estimate of the mean width of a character of a class's name."""


def draw_bars(figure: ClassFigure, styles: Mapping[str, int], name: str, width: int) -> Markup:
    """Bars from zero to each method's mean; `name` begins every id in it."""
    characters = min(int(0.36 * width / CHARACTER), max(map(len, figure.classes)) + 1)
    left = 8 + characters * CHARACTER
    row = BAR * len(figure.values) + GAP
    base = TOP + row * len(figure.classes)
    across = Axis(*_range(figure), left, width - RIGHT)
    parts = vertical_grid(across, TOP, base, width)
    for index, full in enumerate(figure.classes):
        label = full if len(full) <= characters else f"{full[: characters - 1]}…"
        title = [] if label == full else [tag("title", full)]
        middle = TOP + row * index + (row - GAP) / 2
        parts.append(tag("text", *title, label, class_="up", x=f"{left - 8:.1f}", y=middle))
    for position, (method, values) in enumerate(figure.values.items()):
        offset = TOP + BAR * position
        bars = [
            _bar(values[label], f"{method}, {label}", styles[method], across, offset + row * index, figure)
            for index, label in enumerate(figure.classes)
            if label in values
        ]
        parts.append(tag("g", *bars, class_=classes(styles[method])))
    zero = f"{across(0):.1f}"
    parts.append(tag("line", class_="axis", x1=zero, x2=zero, y1=TOP, y2=base))
    described = (
        f"{figure.title} of {len(figure.classes)} classes for {', '.join(figure.values)}; a table below has them."
    )
    return frame(name, f"{figure.title} per class", described, width, base + BOTTOM, parts, class_="chart bars")


def _range(figure: ClassFigure) -> tuple[float, float]:
    ends = [0.0]
    for values in figure.values.values():
        for mean, half_width in values.values():
            ends += [mean - (half_width or 0), mean + (half_width or 0)] if mean < 0 else [mean + (half_width or 0)]
    return min(ends), max(ends) if max(ends) > min(ends) else min(ends) + 1.0


def _bar(value: Interval, label: str, style: int, across: Axis, top: float, figure: ClassFigure) -> Markup:
    mean, half_width = value
    start, end = sorted((across(0), across(mean)))
    middle = top + BAR / 2
    parts: list[str] = [
        tag("title", f"{label}: {plus_minus(mean, half_width, figure.digits)}"),
        tag("rect", class_="bar", x=f"{start:.1f}", y=top + 1, width=f"{end - start:.1f}", height=BAR - 2),
    ]
    if half_width is not None:
        low, high = (across(max(across.low, mean - half_width)), across(mean + half_width))
        parts.append(tag("path", class_="interval", d=f"M{low:.1f},{middle}H{high:.1f}"))
    parts.append(marker(style, across(mean), middle, 3.2))
    return tag("g", *parts)
