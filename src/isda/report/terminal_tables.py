"""Comparisons and searches as tables for the terminal (rich)."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isda._utils.text import escape_control_characters
from isda.engine.tuning.records import SearchRecord
from isda.report.searches import figure_text, outcome, point_text, search_caption, trial_note
from isda.report.summary import Comparison
from isda.report.wording import caption, count_text, difference_text, plus_minus


def comparison_table(comparison: Comparison) -> Table:
    """Per method the figure over seeds and the paired difference; the caption says what they are."""
    figure = comparison.figure
    unit = f", {figure.difference_unit}" if figure.difference_unit else ""
    headings = ["method", "seeds", figure.heading]
    paired = any(method.difference for method in comparison.methods)
    if paired:
        headings.append(f"difference{unit}")
    if comparison.tells_isda_apart:
        headings.append(f"from ISDA{unit}")
    unfinished = any(method.unfinished for method in comparison.methods)
    if unfinished:
        headings.append("unfinished")
    drawn = Table(
        title=Text(escape_control_characters(comparison.title), style="bold"),
        caption=Text(escape_control_characters(caption(comparison))),
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for heading in headings:
        drawn.add_column(
            Text(escape_control_characters(heading)), justify="left" if heading in ("method", "unfinished") else "right"
        )
    for method in comparison.methods:
        value = plus_minus(*method.value, figure.digits) if method.value else ""
        cells = [method.label, count_text(method), value]
        if paired:
            cells.append(difference_text(method.difference, figure.digits))
        if comparison.tells_isda_apart:
            cells.append(difference_text(method.from_isda, figure.digits))
        if unfinished:
            cells.append(", ".join(f"seed {run.seed} at epoch {run.epoch}" for run in method.unfinished))
        drawn.add_row(*(Text(escape_control_characters(cell)) for cell in cells))
    return drawn


def search_table(search: SearchRecord) -> Table:
    """Per trial its point and its figure; the caption says what was chosen."""
    told = " ".join([*map(outcome, search.methods), search_caption(search)])
    drawn = Table(
        title=Text(escape_control_characters(f"Search on {search.title}"), style="bold"),
        caption=Text(escape_control_characters(told)),
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("method", "tried", search.figure.heading, ""):
        drawn.add_column(
            Text(escape_control_characters(heading)), justify="right" if heading == search.figure.heading else "left"
        )
    for method in search.methods:
        for trial in method.trials:
            cells = [
                method.method,
                point_text(trial.point),
                figure_text(trial, search.figure),
                trial_note(trial, method),
            ]
            style = "bold" if "chosen" in cells[-1] else ""
            drawn.add_row(*(Text(escape_control_characters(cell), style=style) for cell in cells))
        drawn.add_section()
    return drawn
