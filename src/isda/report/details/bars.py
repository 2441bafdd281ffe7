"""The chart of a figure per class, as SVG: a row per class, in it a bar per method with its interval over seeds."""

from __future__ import annotations

from collections.abc import Mapping

from isda.report.axes import Axis
from isda.report.charts import frame, tick_text
from isda.report.details.per_class import ClassFigure
from isda.report.markup import Markup, tag
from isda.report.method_styles import classes, marker
from isda.report.statistics import Interval
from isda.report.wording import plus_minus

__all__ = ["draw_bars"]

TOP, BAR, GAP, BOTTOM, RIGHT = 6, 11, 9, 26, 16
CHARACTER = 6.8
"""Width of a character of a class's name, on average and on the safe side."""


def draw_bars(figure: ClassFigure, styles: Mapping[str, int], name: str, width: int) -> Markup:
    """Bars from zero to each method's mean; `name` begins every id in it."""
    room = min(int(0.36 * width / CHARACTER), max(len(one) for one in figure.classes) + 1)
    left = 8 + room * CHARACTER
    row = BAR * len(figure.values) + GAP
    base = TOP + row * len(figure.classes)
    across = Axis(*_range(figure), left, width - RIGHT)
    parts: list[str] = []
    for value in across.ticks(8 if width > 500 else 4):
        x = f"{across(value):.1f}"
        parts.append(tag("line", class_="grid", x1=x, x2=x, y1=TOP, y2=base))
        parts.append(tag("text", tick_text(value), class_="tick across", x=x, y=base + 17))
    for index, one in enumerate(figure.classes):
        label = one if len(one) <= room else f"{one[: room - 1]}…"
        told = [] if label == one else [tag("title", one)]
        parts.append(tag("text", *told, label, class_="up", x=f"{left - 8:.1f}", y=TOP + row * index + (row - GAP) / 2))
    for position, (method, values) in enumerate(figure.values.items()):
        bars = [
            _bar(values[one], f"{method}, {one}", styles[method], across, TOP + row * index + BAR * position, figure)
            for index, one in enumerate(figure.classes)
            if one in values
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


def _bar(value: Interval, told: str, style: int, across: Axis, top: float, figure: ClassFigure) -> Markup:
    mean, half_width = value
    start, end = sorted((across(0), across(mean)))
    middle = top + BAR / 2
    parts: list[str] = [
        tag("title", f"{told}: {plus_minus(mean, half_width, figure.digits)}"),
        tag("rect", class_="bar", x=f"{start:.1f}", y=top + 1, width=f"{end - start:.1f}", height=BAR - 2),
    ]
    if half_width is not None:
        low, high = (across(max(across.low, mean - half_width)), across(mean + half_width))
        parts.append(tag("path", class_="interval", d=f"M{low:.1f},{middle}H{high:.1f}"))
    parts.append(marker(style, across(mean), middle, 3.2))
    return tag("g", *parts)
