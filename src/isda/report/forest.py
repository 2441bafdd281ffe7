"""The plot of paired differences, as SVG: a row per method with every seed's dot, the mean and its interval."""

from __future__ import annotations

from collections.abc import Mapping

from isda.report.axes import Axis
from isda.report.charts import frame, tick_text
from isda.report.markup import Markup, tag
from isda.report.method_styles import classes, marker
from isda.report.method_summary import MethodSummary
from isda.report.summary import Comparison
from isda.report.wording import difference_text, in_units, number

__all__ = ["draw_forest"]

SIDE, TOP, ROW, BOTTOM = 14, 8, 58, 56
CHARACTER = 7.2
"""Width of a character of a row's label, on average and on the safe side."""


def draw_forest(comparison: Comparison, styles: Mapping[str, int], name: str, width: int) -> Markup:
    """The differences of all methods that have one to the baseline; `name` begins every id in it."""
    rows = [method for method in comparison.methods if method.difference is not None]
    across = _axis(rows, width)
    base = TOP + ROW * len(rows)
    zero = f"{across(0):.1f}"
    parts: list[str] = [tag("line", class_="axis", x1=SIDE, x2=width - SIDE, y1=base, y2=base)]
    for value in across.ticks(8 if width > 500 else 4):
        x = f"{across(value):.1f}"
        parts.append(tag("line", class_="grid", x1=x, x2=x, y1=TOP, y2=base))
        parts.append(tag("text", tick_text(value), class_="tick across", x=x, y=base + 17))
    parts.append(tag("line", class_="zero", x1=zero, x2=zero, y1=TOP, y2=base))
    title, digits = comparison.figure.title, comparison.figure.digits
    for index, method in enumerate(rows):
        parts.append(_row(method, styles[method.label], across, TOP + ROW * index, digits))
    parts.append(tag("text", f"← lower {title}", class_="unit", x=SIDE, y=base + 40))
    parts.append(tag("text", f"higher {title} →", class_="unit end", x=width - SIDE, y=base + 40))
    spoken = "; ".join(f"{method.label} {difference_text(method.difference, digits)}" for method in rows)
    return frame(
        name,
        f"Paired differences to {comparison.baseline.label}",
        f"Differences in {title}{in_units(comparison.figure)}: {spoken}.",
        width,
        base + BOTTOM,
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
    return Axis(low - margin, high + margin, SIDE, width - SIDE)


def _row(method: MethodSummary, style: int, across: Axis, top: float, digits: int) -> Markup:
    text = difference_text(method.difference, digits)
    room = int((across.end - across.start) / CHARACTER) - len(text) - 2
    label = method.label if len(method.label) <= room else f"{method.label[: room - 1]}…"
    middle, dots = top + 33, top + 47
    parts: list[str] = [
        tag("text", label, class_="name", x=across.start, y=top + 18),
        tag("text", text, class_="value end", x=across.end, y=top + 18),
    ]
    for seed, value in method.differences.items():
        told = tag("title", f"seed {seed}: {number(value, digits, sign=True)}")
        parts.append(tag("circle", told, class_="dot", cx=f"{across(value):.1f}", cy=dots, r=3.5))
    if method.difference is not None:
        mean, half_width = method.difference
        if half_width is not None:
            low, high = across(mean - half_width), across(mean + half_width)
            ends = f"M{low:.1f},{middle - 5}v10M{low:.1f},{middle}H{high:.1f}M{high:.1f},{middle - 5}v10"
            parts.append(tag("path", class_="interval", d=ends))
        parts.append(marker(style, across(mean), middle, 5.5))
    return tag("g", *parts, class_=classes(style))
