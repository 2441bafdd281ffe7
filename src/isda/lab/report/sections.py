"""The section of one comparison on the page, with its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from isda.lab.engine.config import Curve
from isda.lab.engine.run_records import is_number
from isda.lab.report import html_tables
from isda.lab.report.charts import Chart, curves, draw_forest, swatch
from isda.lab.report.downloads import download_links
from isda.lab.report.further_findings import further_findings
from isda.lab.report.markup import Markup, join, tag
from isda.lab.report.per_class import ClassFigure, class_figures, draw_bars, drawn_classes
from isda.lab.report.pictures import picture_figures
from isda.lab.report.prediction_figures import calibration_figures, confusion_figures, mistake_figures
from isda.lab.report.predictions import comparison_predictions
from isda.lab.report.summary import Comparison
from isda.lab.report.wording import (
    capitalised,
    findings,
    has_scale,
    in_units,
    intervals_text,
    number,
    scale_note,
    scale_text,
    seeds_text,
)

WIDE, NARROW = 800, 360
"""Widths of charts; their text is then about as large as that of tables."""
DECADES = 30.0
"""A loss that spans more than this factor gets a logarithmic axis; a linear one would hide its end."""


def difference_figure(comparison: Comparison, styles: Mapping[str, int], name: str) -> Markup:
    """The paired differences to the baseline, or a sentence if there are none."""
    if not any(method.difference for method in comparison.methods):
        note = "No two methods have finished the same seed, so there is no paired difference to show."
        return tag("p", note, class_="note")
    figure = comparison.figure
    caption = (
        f"Differences in {figure.title} to {comparison.baseline.label} on the same seed{in_units(figure)}. "
        "Small dots are seeds; the marker is their mean, the bar its interval "
        f"({intervals_text(comparison.intervals)}).{scale_note(comparison.config)}"
    )
    return wide_figure(f"{name}-forest", partial(draw_forest, comparison, styles), caption)


def _key(comparison: Comparison, styles: Mapping[str, int]) -> Markup:
    """Each method's line and name, with a checkbox that hides it in the charts of the section."""
    labels = []
    for method in comparison.methods:
        style = styles[method.label]
        box = tag("input", type="checkbox", checked="", data_method=style)
        labels.append(tag("label", box, swatch(style), method.label))
    return tag("fieldset", tag("legend", "Show"), *labels, class_="key")


def curve_figures(comparison: Comparison, styles: Mapping[str, int], name: str) -> Markup:
    """The key, the main metric over the whole column, and side by side the task's other curves."""
    parts: list[str] = [_key(comparison, styles)]
    figure = comparison.figure
    headline = Curve(metric=figure.metric, title=capitalised(figure.title), unit=figure.unit)
    main = _chart(comparison, styles, headline, rising=not figure.lower_is_better)
    if main is not None:
        explanation = _chart_caption(main, comparison, explained=True)
        parts.append(wide_figure(f"{name}-headline", partial(_draw, main), explanation))
    small = {
        f"curve{index}": _chart(comparison, styles, curve) for index, curve in enumerate(_curves(comparison), start=1)
    }
    figures = [
        tag(
            "figure",
            tag("div", chart.draw(f"{name}-{what}", NARROW, 260)),
            tag("figcaption", _chart_caption(chart, comparison)),
        )
        for what, chart in small.items()
        if chart is not None
    ]
    if figures:
        parts.append(tag("div", *figures, class_="pair"))
    return join(parts) if len(parts) > 1 else tag("p", "No run has recorded an epoch yet.", class_="note")


def _curves(comparison: Comparison) -> list[Curve]:
    """The curves that the runs declare; runs of another version may declare others."""
    declared = {curve.metric: curve for run in comparison.runs for curve in run.config.curves}
    return list(declared.values())


def class_figure(comparison: Comparison, figure: ClassFigure, styles: Mapping[str, int], name: str) -> Markup:
    """One metric of every class, each method's bars in one row per class; `name` begins every id in it."""
    caption = f"{capitalised(figure.title)} per class: means over seeds, and their intervals (95% each)"
    if len(figure.values) > 1:
        caption += f"; in each row from above {', '.join(figure.values)}"
    caption += f".{scale_note(comparison.config)}"
    shown = drawn_classes(figure, largest=comparison.figure.lower_is_better)
    if len(shown) < len(figure.classes):
        rank = "highest" if comparison.figure.lower_is_better else "lowest"
        caption += f" The {len(shown)} classes with the {rank} means; the table below has all {len(figure.classes)}."
    if figure.left_out:
        caption += f" {figure.left_out} further classes are not shown."
    return wide_figure(name, partial(draw_bars, figure.restricted(shown), styles), caption)


def _draw(chart: Chart, name: str, width: int) -> Markup:
    return chart.draw(name, width, 380 if width == WIDE else 280)


def wide_figure(name: str, draw: Callable[[str, int], Markup], caption: str) -> Markup:
    """A figure over the whole column, drawn for wide and for narrow screens, where scaled text would be too small."""
    return tag(
        "figure",
        tag("div", draw(name, WIDE), class_="desk"),
        tag("div", draw(f"{name}-phone", NARROW), class_="phone"),
        tag("figcaption", caption),
    )


def _chart(comparison: Comparison, styles: Mapping[str, int], curve: Curve, *, rising: bool = False) -> Chart | None:
    drawn = curves(comparison, curve.metric)
    if not drawn:
        return None
    last = "; ".join(f"{method.label} ends at {number(method.mean[-1][1], 3)}" for method in drawn if method.mean)
    values = [value for method in drawn for line in method.lines for _, value in line.points]
    logarithmic = curve.logarithmic and min(values) > 0 and max(values) / min(values) > DECADES
    return Chart(
        title=f"{curve.title} over the epochs",
        description=f"Means over seeds: {last}.",
        unit=curve.unit,
        curves=drawn,
        styles=styles,
        epochs=comparison.config.epochs,
        logarithmic=logarithmic,
        rising=rising,
    )


def _chart_caption(chart: Chart, comparison: Comparison, *, explained: bool = False) -> str:
    words = [chart.title]
    if explained:
        words[0] += ": lines with markers are means over seeds"
        if any(drawn.band for drawn in chart.curves):
            words[0] += ", bands reach from the lowest to the highest finished seed"
        if any(drawn.shown_lines for drawn in chart.curves):
            words[0] += "; thin lines are single runs"
    words[0] += "."
    if chart.logarithmic:
        words.append("Logarithmic axis.")
    elif chart.cut:
        words.append(f"Some of the first epochs lie {'below' if chart.rising else 'above'} the axis.")
    if any(not line.finished for drawn in chart.curves for line in drawn.lines):
        words.append("Open circles end unfinished runs.")
    return " ".join(words) + scale_note(comparison.config)


def section(
    comparison: Comparison, index: int, styles: Mapping[str, int], folder: Path, *, accuracy: bool = False
) -> Markup:
    """The section of one comparison.

    Args:
        comparison: what it shows.
        index: its number on the page.
        styles: of each method on the page.
        folder: of the page; run folders are named relative to it.
        accuracy: whether to show the accuracy beside the error.
    """
    name = f"c{index}"
    further = html_tables.further_metrics(comparison, styles)
    pictures = picture_figures(comparison)
    per_class = _per_class(comparison, styles, name)
    return tag(
        "section",
        tag("h2", comparison.title, id=f"{name}-heading"),
        _subline(comparison),
        *(tag("p", sentence, class_="finding") for sentence in findings(comparison)),
        *(tag("p", sentence, class_="finding") for sentence in further_findings(comparison)),
        html_tables.results(comparison, styles, accuracy=accuracy),
        _unfinished(comparison),
        download_links(comparison, name),
        difference_figure(comparison, styles, name),
        tag("h3", "Over the epochs"),
        curve_figures(comparison, styles, name),
        *([] if further is None else [tag("h3", "Further metrics"), further]),
        *_predictions(comparison, styles, name, per_class),
        *([] if pictures is None else [tag("h3", "Pictures"), pictures]),
        tag("h3", "Settings"),
        html_tables.differing_settings(comparison),
        html_tables.shared_settings(comparison),
        html_tables.environment(comparison),
        tag("h3", "Runs"),
        html_tables.run_list(comparison, folder),
        id=name,
        aria_labelledby=f"{name}-heading",
    )


def _subline(comparison: Comparison) -> Markup:
    stored = comparison.runs[0].stored
    train, test = (stored.get(f"{part}_images") for part in ("train", "test"))
    words = [
        f"{comparison.config.epochs} epochs",
        *([f"{train:,} training images"] if is_number(train) else []),
        *([f"measured on {test:,} {comparison.config.evaluated_on} images"] if is_number(test) else []),
        seeds_text(sorted({run.seed for run in comparison.runs})),
    ]
    if has_scale(comparison.config):
        scale = tag("strong", scale_text(comparison.config))
        return tag("p", "Scale ", scale, *(f" · {word}" for word in words), class_="subline")
    return tag("p", " · ".join(words), class_="subline")


def _predictions(comparison: Comparison, styles: Mapping[str, int], name: str, per_class: list[Markup]) -> list[Markup]:
    """What predictions show, if runs have left any: calibration, confusions and mistakes, with figures per class."""
    methods = comparison_predictions(comparison)
    if not methods:
        return per_class
    mistakes = mistake_figures(methods, comparison)
    return [
        tag("h3", "Calibration"),
        calibration_figures(methods, comparison, styles, name),
        *per_class,
        tag("h3", "Confusions"),
        confusion_figures(methods, comparison, styles, name),
        *([] if mistakes is None else [tag("h3", "Most confident mistakes"), mistakes]),
    ]


def _per_class(comparison: Comparison, styles: Mapping[str, int], name: str) -> list[Markup]:
    parts = []
    for index, figure in enumerate(class_figures(comparison), start=1):
        parts.append(class_figure(comparison, figure, styles, f"{name}-class{index}"))
        parts.append(html_tables.per_class(figure, comparison))
    return [tag("h3", "Per class"), *parts] if parts else []


def _unfinished(comparison: Comparison) -> Markup:
    runs = [
        f"{method.label} seed {run.seed} (epoch {run.epoch} of {run.config.epochs})"
        for method in comparison.methods
        for run in method.unfinished
    ]
    if not runs:
        return Markup("")
    note = f", and in no mean or difference: {', '.join(runs)}."
    return tag("p", tag("span", "Unfinished", class_="unfinished"), note, class_="note")
