"""What `isda study` shows: a curve along the axis of the study for each figure, and a table of all cells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from isda.analysis.figures import COLOURS, drawn, new_figure, write_page
from isda.analysis.studies.results import Row, figures_of
from isda.analysis.studies.study import Study
from isda.engine.folder.figures import Figure
from isda.report.cells import boxed_table, column, number_cell
from isda.report.markup import Markup, tag
from isda.report.wording import plus_minus, scale_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["caption", "heads", "table_rows", "write_study"]

STYLES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))


def heads(rows: Sequence[Row]) -> list[str]:
    """The heads of the table."""
    figures = figures_of(run for row in rows for run in row.runs.values())
    return ["", "seeds", *(text for figure in figures for text in (figure.heading, "difference"))]


def table_rows(rows: Sequence[Row]) -> Iterator[list[str]]:
    """The cells of the table, as text."""
    figures = figures_of(run for row in rows for run in row.runs.values())
    for row in rows:
        line = [row.cell.label, str(len(row.runs))]
        for figure in figures:
            value, difference = row.values.get(figure.name), row.differences.get(figure.name)
            line.append(plus_minus(*value, digits=figure.digits) if value else "")
            line.append(plus_minus(*difference, digits=figure.digits) if difference else "")
        yield line


def caption(rows: Sequence[Row]) -> str:
    """What the table means."""
    first = next(run for row in rows for run in row.runs.values())
    intervals = (len(rows) - 1) * len(figures_of([first]))
    return (
        f"Mean ± standard deviation over seeds. Differences are to {rows[0].cell.label} on the same seeds, ± half of "
        f"Student's interval, all {intervals} intervals together 95% (Bonferroni); negative is better. "
        f"Scale {scale_text(first.config.scale)}."
    )


def write_study(path: Path, study: type[Study], rows: Sequence[Row], command: str, report: str) -> None:
    """Write the page.

    Args:
        path: of the page.
        study: which it is.
        rows: its cells; the first is the baseline.
        command: that made it.
        report: where the report with the curves over training is, from the page.
    """
    first = next(run for row in rows for run in row.runs.values())
    figures = figures_of([first])
    parts: list[str] = []
    if study.axis is not None:
        parts.append(_curves(study, rows, figures))
    top, *others = heads(rows)
    head = [column(top), *(column(name, numeric=True) for name in others)]
    lines = [[tag("th", line[0], scope="row"), *map(number_cell, line[1:])] for line in table_rows(rows)]
    parts.append(boxed_table(study.title, caption(rows), head, lines))
    parts.append(tag("p", "Every run, its curves over training and its settings: ", tag("a", report, href=report), "."))
    title = f"{study.title}: {first.stored['network']} on {first.stored['data']}"
    lede = f"{sum(len(row.runs) for row in rows)} runs that differ in method and seed alone."
    write_page(path, "isda study", title, lede, parts, command)


def _curves(study: type[Study], rows: Sequence[Row], figures: Sequence[Figure]) -> Markup:
    figure, panels = new_figure(len(figures))
    for shown, axes in zip(figures, panels, strict=True):
        _panel(axes, rows, shown)
        axes.set(xlabel=study.axis, ylabel=shown.heading)
    panels[0].legend(frameon=False, fontsize=8)
    told = "Means over seeds, ± standard deviation; in grey the same without ISDA."
    return drawn(figure, told)


def _panel(axes: Axes, rows: Sequence[Row], figure: Figure) -> None:
    for number, row in enumerate(row for row in rows if row.cell.series is None and row.values):
        mean, std = row.values[figure.name]
        axes.axhline(
            mean, color=COLOURS[0], linestyle=STYLES[number % len(STYLES)][0], linewidth=1, label=row.cell.label
        )
        axes.axhspan(mean - (std or 0), mean + (std or 0), color=COLOURS[0], alpha=0.15, linewidth=0)
    places = sorted({row.cell.x for row in rows if row.cell.series is not None and row.cell.x is not None})
    finite = [x for x in places if math.isfinite(x)]
    # Infinity has a place of its own, one step beyond the largest number.
    beyond = 2.5 * max(finite) if finite else 1.0
    for number, series in enumerate(dict.fromkeys(row.cell.series for row in rows if row.cell.series), start=1):
        line = [row for row in rows if row.cell.series == series and row.values and row.cell.x is not None]
        x = [row.cell.x if row.cell.x is not None and math.isfinite(row.cell.x) else beyond for row in line]
        style, mark = STYLES[(number - 1) % len(STYLES)]
        axes.errorbar(
            x,
            [row.values[figure.name].mean for row in line],
            [row.values[figure.name].std or 0 for row in line],
            color=COLOURS[number % len(COLOURS)],
            linestyle=style,
            marker=mark,
            markersize=4,
            capsize=2,
            linewidth=1.2,
            label=series,
        )
    axes.set_xscale("log")
    marks = [*finite, *([beyond] if len(finite) < len(places) else [])]
    names = [f"{x:g}" for x in finite] + (["∞"] if len(finite) < len(places) else [])
    axes.set_xticks(marks, labels=names)
    axes.minorticks_off()
