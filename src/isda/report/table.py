"""A comparison as a table for the terminal, for `isda compare` and `isda report`."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isda.plain_text import harmless
from isda.report.summary import Comparison
from isda.report.wording import caption, count_text, difference_text, plus_minus

__all__ = ["table"]


def table(comparison: Comparison) -> Table:
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
        title=Text(harmless(comparison.title), style="bold"),
        caption=Text(harmless(caption(comparison))),
        box=SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for heading in headings:
        drawn.add_column(Text(harmless(heading)), justify="left" if heading in ("method", "unfinished") else "right")
    for method in comparison.methods:
        value = plus_minus(*method.value, figure.digits) if method.value else ""
        cells = [method.label, count_text(method), value]
        if paired:
            cells.append(difference_text(method.difference, figure.digits))
        if comparison.tells_isda_apart:
            cells.append(difference_text(method.from_isda, figure.digits))
        if unfinished:
            cells.append(", ".join(f"seed {run.seed} at epoch {run.epoch}" for run in method.unfinished))
        drawn.add_row(*(Text(harmless(cell)) for cell in cells))
    return drawn
