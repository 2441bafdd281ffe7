"""The chart of a metric over epochs, as SVG: thin lines for seeds, a bold line with markers for each method's mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isda.report.axes import Axis
from isda.report.curves import Curves, Points
from isda.report.markup import Markup, join, tag
from isda.report.method_styles import classes, dash, marker
from isda.report.wording import number

__all__ = ["Chart", "frame", "tick_text"]

LEFT, RIGHT, TOP, BOTTOM = 46, 14, 26, 34
EARLY = 0.15
"""The share of epochs at the beginning that may leave the chart: there the curves fall, or rise, steeply."""


@dataclass(frozen=True)
class Chart:
    """What to draw; `title` and `description` are for readers who do not see it."""

    title: str
    description: str
    unit: str
    curves: Sequence[Curves]
    styles: Mapping[str, int]
    epochs: int
    logarithmic: bool = False
    rising: bool = False
    """Whether first epochs may leave the chart at the bottom instead of the top."""

    @property
    def values(self) -> list[float]:
        """Every value of every run."""
        return [value for drawn in self.curves for line in drawn.lines for _, value in line.points]

    @property
    def cut(self) -> bool:
        """Whether some of the first epochs lie outside the chart."""
        low, high = self._range()
        return min(self.values) < low or max(self.values) > high

    def _range(self) -> tuple[float, float]:
        values = self.values
        if self.logarithmic:
            return min(values) / 1.1, max(values) * 1.1
        later = [
            value
            for drawn in self.curves
            for line in drawn.lines
            for epoch, value in line.points
            if epoch > max(1.0, EARLY * self.epochs)
        ]
        settled = later or values
        low, high = (min(settled), max(values)) if self.rising else (min(values), max(settled))
        # Values that are all the same still need an axis of some length.
        margin = 0.05 * (high - low) or 0.1 * abs(high) or 0.1
        # An axis that nearly reaches zero had better show it.
        return 0.0 if 0 <= low < 0.2 * high else low - margin, high + margin

    def draw(self, name: str, width: int, height: int) -> Markup:
        """The chart as an SVG element; `name` begins every id in it."""
        across = Axis(1, max(2, self.epochs), LEFT, width - RIGHT)
        up = Axis(*self._range(), height - BOTTOM, TOP, self.logarithmic)
        window = tag("rect", x=LEFT - 6, y=TOP - 4, width=width - RIGHT - LEFT + 12, height=height - BOTTOM - TOP + 8)
        parts = [
            tag("defs", tag("clipPath", window, id=f"{name}-clip")),
            _grid(across, up, self.unit, width, height),
            tag("line", class_="cursor", x1=LEFT, x2=LEFT, y1=TOP, y2=height - BOTTOM),
            tag("g", *(self._seeds(drawn, across, up) for drawn in self.curves), clip_path=f"url(#{name}-clip)"),
            tag("g", *(self._mean(drawn, across, up) for drawn in self.curves), clip_path=f"url(#{name}-clip)"),
        ]
        extent = {"data_left": LEFT, "data_right": width - RIGHT, "data_last": across.high}
        return frame(name, self.title, self.description, width, height, parts, class_="chart curves", **extent)

    def _seeds(self, drawn: Curves, across: Axis, up: Axis) -> Markup:
        style = self.styles[drawn.label]
        parts: list[str] = []
        for line in drawn.lines:
            parts.append(tag("path", class_="seed", d=_path(line.points, across, up)))
            if not line.finished:
                epoch, value = line.points[-1]
                parts.append(tag("circle", class_="stopped", cx=f"{across(epoch):.1f}", cy=f"{up(value):.1f}", r=3.5))
        return tag("g", *parts, class_=classes(style))

    def _mean(self, drawn: Curves, across: Axis, up: Axis) -> Markup:
        if not drawn.mean:
            return Markup("")
        style = self.styles[drawn.label]
        # Each method starts its markers elsewhere, so that they do not hide one another.
        every = max(1, len(drawn.mean) // 6)
        marked = drawn.mean[(2 * style + 1) % every :: every]
        line = tag(
            "path",
            class_="mean",
            d=_path(drawn.mean, across, up),
            stroke_dasharray=dash(style),
            data_label=drawn.label,
            data_points=json.dumps({epoch: float(f"{value:.5g}") for epoch, value in drawn.mean}),
        )
        return tag(
            "g", line, *(marker(style, across(epoch), up(value)) for epoch, value in marked), class_=classes(style)
        )


def frame(
    name: str, title: str, description: str, width: int, height: int, parts: Sequence[str], **attributes: object
) -> Markup:
    """An SVG element of that size with its title and description."""
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        tag("desc", description, id=f"{name}-desc"),
        *parts,
        viewBox=f"0 0 {width} {height}",
        role="img",
        id=name,
        aria_labelledby=f"{name}-title {name}-desc",
        **attributes,
    )


def tick_text(value: float) -> str:
    """A tick's value in as many digits as it needs.

    Example:
        >>> tick_text(20.0), tick_text(-0.25)
        ('20', '−0.25')
    """
    return number(value, 0) if value == int(value) else format(value, ".4g").replace("-", "−")


def _grid(across: Axis, up: Axis, unit: str, width: int, height: int) -> Markup:
    parts: list[str] = [tag("text", unit, class_="unit", x=4, y=13)]
    for value in up.ticks(5):
        y = f"{up(value):.1f}"
        parts.append(tag("line", class_="grid", x1=LEFT, x2=width - RIGHT, y1=y, y2=y))
        parts.append(tag("text", tick_text(value), class_="tick up", x=LEFT - 8, y=y))
    base = height - BOTTOM
    parts.append(tag("line", class_="axis", x1=LEFT, x2=width - RIGHT, y1=base, y2=base))
    for value in across.ticks(8 if width > 500 else 4):
        if value == int(value):
            parts.append(tag("text", tick_text(value), class_="tick across", x=f"{across(value):.1f}", y=base + 17))
    parts.append(tag("text", "epoch", class_="unit end", x=width - RIGHT, y=base + 31))
    return join(parts)


def _path(points: Points, across: Axis, up: Axis) -> str:
    return "M" + "L".join(f"{across(epoch):.1f},{up(value):.1f}" for epoch, value in points)
