"""A search as a table for the terminal, for `isda tune` and `isda report`."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isda.engine.tuning.record import Search
from isda.plain_text import harmless
from isda.report.searches.wording import figure_text, outcome, point_text, search_caption, trial_note

__all__ = ["search_table"]


def search_table(search: Search) -> Table:
    """Per trial its point and its figure; the caption says what was chosen."""
    told = " ".join([*map(outcome, search.methods), search_caption(search)])
    drawn = Table(
        title=Text(harmless(f"Search on {search.title}"), style="bold"),
        caption=Text(harmless(told)),
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("method", "tried", search.figure.heading, ""):
        drawn.add_column(Text(harmless(heading)), justify="right" if heading == search.figure.heading else "left")
    for method in search.methods:
        for trial in method.trials:
            cells = [
                method.method,
                point_text(trial.point),
                figure_text(trial, search.figure),
                trial_note(trial, method),
            ]
            style = "bold" if "chosen" in cells[-1] else ""
            drawn.add_row(*(Text(harmless(cell), style=style) for cell in cells))
        drawn.add_section()
    return drawn
