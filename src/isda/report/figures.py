"""The figures of a comparison's section: paired differences, curves over epochs, and the key to both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from isda.report.charts import Chart
from isda.report.curves import curves
from isda.report.forest import draw_forest
from isda.report.markup import Markup, join, tag
from isda.report.method_summary import LEVEL
from isda.report.strokes import swatch
from isda.report.summary import Comparison
from isda.report.wording import number, subject

__all__ = ["curve_figures", "difference_figure"]

WIDE, NARROW = 800, 360
"""Widths in which a chart is drawn; at these its text is about as large as the text of tables."""
DECADES = 30.0
"""A loss that spans more than this factor gets a logarithmic axis; an even one would hide its end."""


def difference_figure(comparison: Comparison, styles: Mapping[str, int], name: str) -> Markup:
    """The paired differences to the baseline, or a sentence where there are none."""
    if not any(method.difference for method in comparison.methods):
        told = "No two methods have finished the same seed, so there is no paired difference to show."
        return tag("p", told, class_="note")
    told = (
        f"Differences in {subject(comparison)} to {comparison.baseline.label} on the same seed, in percentage points. "
        f"Small dots are seeds; the marker is their mean, the bar its {LEVEL:.0%} interval. Scale {comparison.scale}."
    )
    return _figure(f"{name}-forest", partial(draw_forest, comparison, styles), told)


def _key(comparison: Comparison, styles: Mapping[str, int]) -> Markup:
    """Each method's line and name, with a box to hide it from the charts of the section."""
    labels = []
    for method in comparison.methods:
        style = styles[method.label]
        box = tag("input", type="checkbox", checked="", data_method=style)
        labels.append(tag("label", box, swatch(style), method.label))
    return tag("fieldset", tag("legend", "Show"), *labels, class_="key")


def curve_figures(comparison: Comparison, styles: Mapping[str, int], name: str) -> Markup:
    """Error over the whole column, below it side by side training loss and ISDA's strength; above them the key."""
    parts: list[str] = [_key(comparison, styles)]
    error = _chart(comparison, styles, "test/error", f"{subject(comparison).capitalize()} over the epochs", "%")
    if error is not None:
        parts.append(_figure(f"{name}-error", partial(_draw, error), _told(error, comparison)))
    small = {
        "loss": _chart(comparison, styles, "train/loss", "Training loss over the epochs", "loss"),
        "strength": _chart(comparison, styles, "strength", "Strength λ of ISDA over the epochs", "λ"),
    }
    figures = [
        tag(
            "figure", tag("div", chart.draw(f"{name}-{what}", NARROW, 260)), tag("figcaption", _told(chart, comparison))
        )
        for what, chart in small.items()
        if chart is not None
    ]
    if figures:
        parts.append(tag("div", *figures, class_="pair"))
    return join(parts) if len(parts) > 1 else tag("p", "No run has recorded an epoch yet.", class_="note")


def _draw(chart: Chart, name: str, width: int) -> Markup:
    return chart.draw(name, width, 380 if width == WIDE else 280)


def _figure(name: str, draw: Callable[[str, int], Markup], told: str) -> Markup:
    """A figure over the whole column, drawn twice: scaled down to a phone, the wide one's text would be too small."""
    return tag(
        "figure",
        tag("div", draw(name, WIDE), class_="desk"),
        tag("div", draw(f"{name}-phone", NARROW), class_="phone"),
        tag("figcaption", told),
    )


def _chart(comparison: Comparison, styles: Mapping[str, int], metric: str, title: str, unit: str) -> Chart | None:
    drawn = curves(comparison, metric)
    if not drawn:
        return None
    last = "; ".join(f"{one.label} ends at {number(one.mean[-1][1], 3)}" for one in drawn if one.mean)
    values = [value for one in drawn for line in one.lines for _, value in line.points]
    logarithmic = metric == "train/loss" and min(values) > 0 and max(values) / min(values) > DECADES
    return Chart(title, f"Means over seeds: {last}.", unit, drawn, styles, comparison.epochs, logarithmic)


def _told(chart: Chart, comparison: Comparison) -> str:
    words = [f"{chart.title}: thin lines are seeds, bold lines with markers their means."]
    if chart.logarithmic:
        words.append("Logarithmic axis.")
    elif chart.cut:
        words.append("Some of the first epochs lie above the axis.")
    if any(not line.finished for drawn in chart.curves for line in drawn.lines):
        words.append("Open circles end unfinished runs.")
    return " ".join([*words, f"Scale {comparison.scale}."])
