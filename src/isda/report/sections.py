"""A comparison's section on the page, from its findings to its run folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from isda.engine.folder.reading import is_number
from isda.report import html_tables
from isda.report.details.per_class import class_figures
from isda.report.details.pictures import picture_figures
from isda.report.figures import class_figure, curve_figures, difference_figure
from isda.report.markup import Markup, tag
from isda.report.summary import Comparison
from isda.report.wording import findings, scale_text, seeds_text

__all__ = ["section"]


def section(comparison: Comparison, index: int, styles: Mapping[str, int], folder: Path) -> Markup:
    """Everything about one comparison.

    Args:
        comparison: what to show.
        index: its number on the page, for ids.
        styles: each label's look, the same for the whole page.
        folder: the folder of the page; run folders are named relative to it.
    """
    name = f"c{index}"
    further = html_tables.further_metrics(comparison, styles)
    pictures = picture_figures(comparison)
    return tag(
        "section",
        tag("h2", comparison.title, id=f"{name}-heading"),
        _subline(comparison),
        *(tag("p", sentence, class_="finding") for sentence in findings(comparison)),
        html_tables.results(comparison, styles),
        _unfinished(comparison),
        difference_figure(comparison, styles, name),
        tag("h3", "Over the epochs"),
        curve_figures(comparison, styles, name),
        *_per_class(comparison, styles, name),
        *([] if pictures is None else [tag("h3", "Pictures"), pictures]),
        *([] if further is None else [tag("h3", "Further metrics"), further]),
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
        f"{comparison.epochs} epochs",
        *([f"{train:,} training images"] if is_number(train) else []),
        *([f"measured on {test:,} {comparison.evaluated_on} images"] if is_number(test) else []),
        seeds_text(sorted({run.seed for run in comparison.runs})),
    ]
    scale = tag("strong", scale_text(comparison.scale))
    return tag("p", "Scale ", scale, *(f" · {word}" for word in words), class_="subline")


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
    told = f", and in no mean or difference: {', '.join(runs)}."
    return tag("p", tag("span", "Unfinished", class_="unfinished"), told, class_="note")
