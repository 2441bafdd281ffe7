"""The atlas as a table for the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from isda.analysis.directions.atlas import Atlas
from isda.analysis.directions.wording import p_text, percent
from isda.plain_text import harmless
from isda.report.wording import number

__all__ = ["atlas_table"]


def atlas_table(atlas: Atlas) -> Table:
    """The share of the variance of each direction, and what a judge says of it."""
    config, names = atlas.observed.trained.config, atlas.observed.classes
    drawn = Table(
        title=Text(harmless(f"Directions of {config.network} on {config.data}"), style="bold"),
        box=SIMPLE_HEAD,
        title_justify="left",
    )
    judged = ["over random pairs", "over the same end", "corrected p"] if atlas.judged else []
    for heading in ("class", "images", "direction", "variance", *judged):
        drawn.add_column(heading, justify="left" if heading == "class" else "right")
    for view in atlas.classes:
        for index, one in enumerate(view.directions, start=1):
            cells = [names[view.label], str(view.images), str(index), percent(one.share)]
            if one.judged is not None and one.corrected_p is not None:
                cells += [number(one.judged.ratio), number(one.judged.shuffled_ratio), p_text(one.corrected_p)]
            drawn.add_row(*(Text(harmless(cell)) for cell in cells))
    return drawn
