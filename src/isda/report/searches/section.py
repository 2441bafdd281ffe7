"""A search's section on the page: what was chosen, charts of what was tried, and a table of it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from isda.engine.tuning.record import MethodSearch, Search
from isda.engine.tuning.searched import Searched
from isda.report.cells import boxed_table, column, number_cell
from isda.report.figures import wide_figure
from isda.report.markup import Markup, tag
from isda.report.searches.chart import draw_trials, logarithmic
from isda.report.searches.heat import MOST_VALUES, draw_heat
from isda.report.searches.wording import figure_text, outcome, point_text, search_caption, trial_note
from isda.report.wording import capitalised

__all__ = ["search_section"]

MOST_CHARTS = 8
"""Of a method; more settings are in the table only."""
WIDE, NARROW = 320, 260
"""Heights on a desk and on a phone."""


def search_section(search: Search, index: int, folder: Path) -> Markup:
    """Everything about one search.

    Args:
        search: what to show.
        index: its number on the page, for ids.
        folder: the folder of the page; that of the search is named relative to it.
    """
    name = f"s{index}"
    parts: list[str] = [
        tag("h2", f"Search: {search.title}", id=f"{name}-heading"),
        tag("p", search_caption(search), class_="subline"),
        *(tag("p", outcome(method), class_="finding") for method in search.methods),
    ]
    for number, method in enumerate(search.methods, start=1):
        if method.searched and method.trials:
            parts.append(tag("h3", method.method))
            parts += _figures(method, search, f"{name}-m{number}")
            parts.append(_table(method, search))
    if search.folder is not None:
        place = Path(os.path.relpath(search.folder, folder)).as_posix()
        parts.append(tag("p", "Its runs are in ", tag("code", f"{place}/search"), ".", class_="note"))
    return tag("section", *parts, id=name, aria_labelledby=f"{name}-heading")


def _figures(method: MethodSearch, search: Search, name: str) -> list[Markup]:
    figure = search.figure
    if len(method.searched) == 2 and search.sampler == "grid" and _fits(method):
        told = (
            f"{capitalised(figure.title)} of {method.method} at every pair of values tried: the darker the better, the "
            f"choice framed, × where a run diverged. Scale {search.scale}."
        )
        return [wide_figure(name, partial(draw_heat, method, figure), told)]
    return [
        wide_figure(f"{name}-{number}", partial(_draw, method, setting, search), _told(method, setting, search))
        for number, setting in enumerate(method.searched[:MOST_CHARTS], start=1)
    ]


def _fits(method: MethodSearch) -> bool:
    return all(len({trial.point[one.name] for trial in method.trials}) <= MOST_VALUES for one in method.searched)


def _draw(method: MethodSearch, setting: Searched, search: Search, name: str, width: int) -> Markup:
    return draw_trials(method, setting, search.figure, name, width, WIDE if width > 500 else NARROW)


def _told(method: MethodSearch, setting: Searched, search: Search) -> str:
    words = [f"{capitalised(search.figure.title)} of {method.method} against {setting.name}: a marker for every trial"]
    words.append(", small dots for its seeds" if len(search.seeds) > 1 else "")
    words.append(", a ring around the choice")
    words.append(", crosses where a run diverged." if any(trial.problem for trial in method.trials) else ".")
    words.append(" Logarithmic axis." if logarithmic(setting, method.trials) else "")
    return "".join([*words, f" Scale {search.scale}."])


def _table(method: MethodSearch, search: Search) -> Markup:
    """Every trial, folded."""
    figure = search.figure
    head = [column("Tried"), column(capitalised(figure.heading), numeric=True), column("")]
    rows = [
        [
            tag("th", tag("code", point_text(trial.point)), scope="row"),
            number_cell(figure_text(trial, figure), clear=trial == method.best),
            tag("td", trial_note(trial, method)),
        ]
        for trial in method.trials
    ]
    told = f"Every trial of {method.method}: mean ± standard deviation over seeds. Scale {search.scale}."
    table = boxed_table(f"Trials of {method.method} on {search.title}", told, head, rows)
    return tag("details", tag("summary", f"The {len(method.trials)} trials as a table"), table)
