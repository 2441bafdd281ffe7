"""SVG charts: axes, method styles, curves over epochs, and the forest plot of paired differences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isda.lab.engine.run_records import RunRecord
from isda.lab.report.markup import Markup, join, tag
from isda.lab.report.summary import Comparison, MethodSummary
from isda.lab.report.wording import difference_text, in_units, number


@dataclass(frozen=True)
class Axis:
    """Maps values low..high to positions start..end, linearly or logarithmically."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, count: int) -> list[float]:
        """About `count` round values from low to high."""
        return _decades(self.low, self.high, count) if self.logarithmic else round_ticks(self.low, self.high, count)


def round_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` multiples of 1, 2 or 5 times a power of ten from low to high.

    Example:
        >>> round_ticks(0.3, 4.1, 4)
        [1.0, 2.0, 3.0, 4.0]
    """
    if not low < high:
        raise ValueError(f"low must be below high, got {low} and {high}")
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Division by the inverse: 3 * 0.1 is not 0.3.
    return [index / round(1 / step) if step < 1 else index * step for index in range(first, last + 1)]


def _decades(low: float, high: float, count: int) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= count + 1:
            return ticks
    return ticks[:: math.ceil(len(ticks) / count)]


COLOURS = 6
"""Number of colours in style.css; the first, a grey, is the baseline's."""

DASHES = (None, "8 3", "2.5 2.5", "10 3 2 3", "14 4", "5 2 1.5 2")
MARKERS = (
    "M-1,0a1,1 0 1 0 2,0a1,1 0 1 0 -2,0z",
    "M-.9,-.9h1.8v1.8h-1.8z",
    "M0,-1.2L1.15,.85H-1.15z",
    "M0,-1.35L1.35,0L0,1.35L-1.35,0z",
    "M0,1.2L1.15,-.85H-1.15z",
    "M-.4,-1.2h.8v.8h.8v.8h-.8v.8h-.8v-.8h-.8v-.8h.8z",
)


def colour_class(style: int) -> str:
    """The CSS class of a method's colour."""
    return f"c{style % COLOURS}"


def classes(style: int) -> str:
    """The CSS classes of a method: its colour, and the name by which the key hides it."""
    return f"{colour_class(style)} m{style}"


def dash(style: int) -> str | None:
    """The stroke-dasharray of a method's mean."""
    return DASHES[_shape(style)]


def marker(style: int, x: float, y: float, size: float = 4.0) -> Markup:
    """The method's marker with its centre at (x, y)."""
    return tag("path", class_="marker", d=MARKERS[_shape(style)], transform=f"translate({x:.1f} {y:.1f}) scale({size})")


def swatch(style: int) -> Markup:
    """A short piece of the method's line, beside its name in keys and tables."""
    line = tag("path", class_="mean", d="M1,6H31", stroke_dasharray=dash(style))
    return tag(
        "svg",
        tag("g", line, marker(style, 16, 6, 3.6), class_=colour_class(style)),
        class_="swatch",
        viewBox="0 0 32 12",
        width=32,
        height=12,
        aria_hidden="true",
    )


def _shape(style: int) -> int:
    """Shifted on each round through the colours, so that colour and shape together are unique."""
    return (style + style // COLOURS) % len(DASHES)


Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Line:
    """One run's curve."""

    seed: int
    points: Points
    finished: bool


@dataclass(frozen=True)
class Curves:
    """One method's curves of one metric; `mean` and `band` may be empty."""

    label: str
    lines: tuple[Line, ...]
    mean: Points
    band: Sequence[tuple[int, float, float]] = ()
    """(epoch, lowest, highest value) over finished runs, at least two."""

    @property
    def shown_lines(self) -> tuple[Line, ...]:
        """The lines that the band does not show: those of unfinished runs, or all without a band."""
        return tuple(line for line in self.lines if not line.finished) if self.band else self.lines


def curves(comparison: Comparison, key: str) -> list[Curves]:
    """The curves of the methods that recorded the metric."""
    result = []
    for method in comparison.methods:
        recorded = [run for run in method.runs if run.curve(key)]
        if recorded:
            lines = tuple(Line(run.seed, run.curve(key), run.result is not None) for run in recorded)
            result.append(Curves(method.label, lines, _mean(recorded, key), _band(lines)))
    return result


def _mean(runs: list[RunRecord], key: str) -> Points:
    """The mean over finished runs, or over all if none is, at their common epochs.

    With unfinished runs, the mean would jump where they end.
    """
    finished = [run for run in runs if run.result is not None]
    counted = [dict(run.curve(key)) for run in finished or runs]
    common = sorted(set.intersection(*(set(curve) for curve in counted)))
    return [(epoch, sum(curve[epoch] for curve in counted) / len(counted)) for epoch in common]


def _band(lines: Sequence[Line]) -> list[tuple[int, float, float]]:
    """The range over finished runs at the epochs that all of them have; empty for fewer than two runs."""
    finished = [dict(line.points) for line in lines if line.finished]
    if len(finished) < 2:
        return []
    common = sorted(set.intersection(*(set(points) for points in finished)))
    values = {epoch: [points[epoch] for points in finished] for epoch in common}
    return [(epoch, min(values[epoch]), max(values[epoch])) for epoch in common]


LEFT, RIGHT, TOP, BOTTOM = 46, 14, 26, 34
EARLY = 0.15
"""The share of first epochs, with steep curves, that may leave the chart."""


@dataclass(frozen=True)
class Chart:
    """A chart of curves over epochs; `title` and `description` are for screen readers."""

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
        # Equal values need an axis of some length, too.
        margin = 0.05 * (high - low) or 0.1 * abs(high) or 0.1
        # An axis that nearly reaches zero shows it.
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
        if drawn.band:
            above = [(epoch, high) for epoch, _, high in drawn.band]
            below = [(epoch, low) for epoch, low, _ in reversed(drawn.band)]
            parts.append(tag("path", class_="band", d=f"{_path([*above, *below], across, up)}Z"))
        for line in drawn.shown_lines:
            parts.append(tag("path", class_="seed", d=_path(line.points, across, up)))
            if not line.finished:
                epoch, value = line.points[-1]
                parts.append(tag("circle", class_="stopped", cx=f"{across(epoch):.1f}", cy=f"{up(value):.1f}", r=3.5))
        return tag("g", *parts, class_=classes(style))

    def _mean(self, drawn: Curves, across: Axis, up: Axis) -> Markup:
        if not drawn.mean:
            return Markup("")
        style = self.styles[drawn.label]
        # Each method starts its markers at another epoch, so that they do not overlap.
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
    """A tick's value without trailing zeros.

    Example:
        >>> tick_text(20.0), tick_text(-0.25)
        ('20', '−0.25')
    """
    return number(value, 0) if value == int(value) else format(value, ".4g").replace("-", "−")


def horizontal_grid(up: Axis, unit: str, left: int, right: int) -> list[str]:
    """The unit of a vertical axis, a grid line for each tick from `left` to `right`, and the axis below."""
    parts: list[str] = [tag("text", unit, class_="unit", x=4, y=13)]
    for value in up.ticks(5):
        y = f"{up(value):.1f}"
        parts.append(tag("line", class_="grid", x1=left, x2=right, y1=y, y2=y))
        parts.append(tag("text", tick_text(value), class_="tick up", x=left - 8, y=y))
    return [*parts, tag("line", class_="axis", x1=left, x2=right, y1=up.start, y2=up.start)]


def vertical_grid(across: Axis, top: int, base: int, width: int) -> list[str]:
    """A grid line for each tick of a horizontal axis, from `top` to `base`."""
    parts: list[str] = []
    for value in across.ticks(8 if width > 500 else 4):
        x = f"{across(value):.1f}"
        parts.append(tag("line", class_="grid", x1=x, x2=x, y1=top, y2=base))
        parts.append(tag("text", tick_text(value), class_="tick across", x=x, y=base + 17))
    return parts


def _grid(across: Axis, up: Axis, unit: str, width: int, height: int) -> Markup:
    parts = horizontal_grid(up, unit, LEFT, width - RIGHT)
    base = height - BOTTOM
    for value in across.ticks(8 if width > 500 else 4):
        if value == int(value):
            parts.append(tag("text", tick_text(value), class_="tick across", x=f"{across(value):.1f}", y=base + 17))
    parts.append(tag("text", "epoch", class_="unit end", x=width - RIGHT, y=base + 31))
    return join(parts)


def _path(points: Points, across: Axis, up: Axis) -> str:
    return "M" + "L".join(f"{across(epoch):.1f},{up(value):.1f}" for epoch, value in points)


FOREST_SIDE, FOREST_TOP, FOREST_ROW, FOREST_BOTTOM = 14, 8, 58, 56
FOREST_CHARACTER = 7.2
"""Upper estimate of the mean width of a character of a label."""


def draw_forest(comparison: Comparison, styles: Mapping[str, int], name: str, width: int) -> Markup:
    """The differences of methods to the baseline; `name` begins every id in it."""
    rows = [method for method in comparison.methods if method.difference is not None]
    across = _axis(rows, width)
    base = FOREST_TOP + FOREST_ROW * len(rows)
    zero = f"{across(0):.1f}"
    parts: list[str] = [tag("line", class_="axis", x1=FOREST_SIDE, x2=width - FOREST_SIDE, y1=base, y2=base)]
    parts += vertical_grid(across, FOREST_TOP, base, width)
    parts.append(tag("line", class_="zero", x1=zero, x2=zero, y1=FOREST_TOP, y2=base))
    title, digits = comparison.figure.title, comparison.figure.digits
    for index, method in enumerate(rows):
        parts.append(_row(method, styles[method.label], across, FOREST_TOP + FOREST_ROW * index, digits))
    parts.append(tag("text", f"← lower {title}", class_="unit", x=FOREST_SIDE, y=base + 40))
    parts.append(tag("text", f"higher {title} →", class_="unit end", x=width - FOREST_SIDE, y=base + 40))
    spoken = "; ".join(f"{method.label} {difference_text(method.difference, digits)}" for method in rows)
    return frame(
        name,
        f"Paired differences to {comparison.baseline.label}",
        f"Differences in {title}{in_units(comparison.figure)}: {spoken}.",
        width,
        base + FOREST_BOTTOM,
        parts,
        class_="chart forest",
    )


def _axis(rows: list[MethodSummary], width: int) -> Axis:
    reached = [0.0]
    for method in rows:
        reached += method.differences.values()
        if method.difference and method.difference.half_width is not None:
            reached += [method.difference.mean - method.difference.half_width]
            reached += [method.difference.mean + method.difference.half_width]
    low, high = min(reached), max(reached)
    margin = 0.08 * (high - low) or 1.0
    return Axis(low - margin, high + margin, FOREST_SIDE, width - FOREST_SIDE)


def _row(method: MethodSummary, style: int, across: Axis, top: float, digits: int) -> Markup:
    text = difference_text(method.difference, digits)
    characters = int((across.end - across.start) / FOREST_CHARACTER) - len(text) - 2
    label = method.label if len(method.label) <= characters else f"{method.label[: characters - 1]}…"
    middle, dots = top + 33, top + 47
    parts: list[str] = [
        tag("text", label, class_="name", x=across.start, y=top + 18),
        tag("text", text, class_="value end", x=across.end, y=top + 18),
    ]
    for seed, value in method.differences.items():
        title = tag("title", f"seed {seed}: {number(value, digits, sign=True)}")
        parts.append(tag("circle", title, class_="dot", cx=f"{across(value):.1f}", cy=dots, r=3.5))
    if method.difference is not None:
        mean, half_width = method.difference
        if half_width is not None:
            low, high = across(mean - half_width), across(mean + half_width)
            ends = f"M{low:.1f},{middle - 5}v10M{low:.1f},{middle}H{high:.1f}M{high:.1f},{middle - 5}v10"
            parts.append(tag("path", class_="interval", d=ends))
        parts.append(marker(style, across(mean), middle, 5.5))
    return tag("g", *parts, class_=classes(style))
