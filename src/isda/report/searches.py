"""The section of one `isda tune` search on the page: outcome, charts of the trials, table."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from isda.engine.config import Figure
from isda.engine.tuning.proposers import is_geometric
from isda.engine.tuning.records import MethodSearchRecord, SearchRecord
from isda.engine.tuning.search_space import Point, SearchedSetting, Trial, value_text
from isda.report.charts import Axis, classes, frame, marker, tick_text
from isda.report.markup import Markup, boxed_table, column, number_cell, tag
from isda.report.sections import wide_figure
from isda.report.statistics import mean_std
from isda.report.wording import capitalised, counted, number, plus_minus, scale_text, seeds_text


def point_text(point: Point) -> str:
    """A point as it would be written behind the colon of a method.

    Example:
        >>> point_text({"lambda_0": 0.5, "lr": 0.1})
        'lambda_0=0.5, lr=0.1'
    """
    return ", ".join(f"{name}={value_text(value)}" for name, value in point.items())


def figure_text(trial: Trial, figure: Figure) -> str:
    """The figure of a trial over its seeds."""
    return plus_minus(*mean_std(list(trial.values.values())), figure.digits) if trial.values else "diverged"


def trial_note(trial: Trial, method: MethodSearchRecord) -> str:
    """What is special about a trial."""
    words = ["chosen"] if trial.point == method.chosen and trial == method.best else []
    if trial.why.startswith("widened"):
        words.append("beyond the grid")
    if trial.why.startswith("refined"):
        words.append("between values of the grid")
    return ", ".join([*words, *([trial.problem] if trial.problem else [])])


def outcome(method: MethodSearchRecord) -> str:
    """What was chosen for a method, and where that lies."""
    if not method.searched:
        return f"{method.method}: nothing to choose."
    trials = counted(len(method.trials), "trial")
    if method.chosen is None:
        return f"{method.method}: no choice after {trials}."
    where = "; ".join(method.notes) or "inside of what was tried"
    return f"{method.method}: {point_text(method.chosen)} after {trials}, {where}."


def search_caption(search: SearchRecord) -> str:
    """What the figures of a search are."""
    held = dict.fromkeys(one.held_out for one in search.methods)
    better = "lower" if search.figure.lower_is_better else "higher"
    told = (
        f"{search.figure.title[:1].upper()}{search.figure.title[1:]} ({better} is better), {seeds_text(search.seeds)}. "
        f"Held out: {'; '.join(held)}. Scale {scale_text(search.scale)}."
    )
    return told if search.finished else f"{told} The search is not finished."


CHART_LEFT, CHART_RIGHT, CHART_TOP, CHART_BOTTOM = 46, 20, 26, 40
STYLE = 1
"""The look of a method; in these charts there is only one."""
MOST_LABELS = 12
"""Values that are all named below the axis."""


def logarithmic(setting: SearchedSetting, trials: Sequence[Trial]) -> bool:
    """Whether a logarithmic axis suits the values of a setting: where they go by ratios, and are positive."""
    if not setting.numeric:
        return False
    if not setting.values:
        return setting.low is not None and setting.low > 0
    tried = sorted({trial.point[setting.name] for trial in trials})
    return len(tried) > 1 and tried[0] > 0 and is_geometric(tried)


def draw_trials(
    method: MethodSearchRecord, setting: SearchedSetting, figure: Figure, name: str, width: int, height: int
) -> Markup:
    """The trials of a method against a setting, joined by a line where it is the only one on a grid.

    Args:
        method: what was tried.
        setting: which of its settings.
        figure: the held-out one.
        name: begins every id in it.
        width: in pixels.
        height: in pixels.
    """
    trials = sorted(method.trials, key=lambda trial: (str(type(trial.point[setting.name])), trial.point[setting.name]))
    values = list(dict.fromkeys(trial.point[setting.name] for trial in trials))
    across, ticks = _across(setting, trials, values, width)
    up = _up(trials, height)
    base = height - CHART_BOTTOM
    parts: list[str] = [tag("text", figure.heading, class_="unit", x=4, y=13)]
    for value in up.ticks(5):
        y = f"{up(value):.1f}"
        parts.append(tag("line", class_="grid", x1=CHART_LEFT, x2=width - CHART_RIGHT, y1=y, y2=y))
        parts.append(tag("text", tick_text(value), class_="tick up", x=CHART_LEFT - 8, y=y))
    parts.append(tag("line", class_="axis", x1=CHART_LEFT, x2=width - CHART_RIGHT, y1=base, y2=base))
    for tick, text in ticks:
        parts.append(tag("text", text, class_="tick across", x=f"{across(tick):.1f}", y=base + 17))
    parts.append(tag("text", setting.name, class_="unit end", x=width - CHART_RIGHT, y=base + 35))
    parts.append(_trials(method, trials, setting, figure, across, up))
    told = "; ".join(f"{point_text(trial.point)}: {figure_text(trial, figure)}" for trial in trials[:MOST_LABELS])
    more = f" and {len(trials) - MOST_LABELS} more, in the table below" if len(trials) > MOST_LABELS else ""
    title = f"{figure.title} of {method.method} against {setting.name}"
    return frame(name, title, f"{told}{more}.", width, height, parts, class_="chart trials")


def _trials(
    method: MethodSearchRecord,
    trials: Sequence[Trial],
    setting: SearchedSetting,
    figure: Figure,
    across: Callable[[Any], float],
    up: Axis,
) -> Markup:
    judged = [
        (across(trial.point[setting.name]), up(trial.value), trial) for trial in trials if trial.value is not None
    ]
    parts: list[str] = []
    if len(method.searched) == 1 and setting.numeric and setting.values and len(judged) > 1:
        parts.append(tag("path", class_="seed", d="M" + "L".join(f"{x:.1f},{y:.1f}" for x, y, _ in judged)))
    for x, y, trial in judged:
        if len(trial.values) > 1:
            for value in trial.values.values():
                parts.append(tag("circle", class_="dot", cx=f"{x:.1f}", cy=f"{up(value):.1f}", r=2))
        told = tag("title", f"{point_text(trial.point)}: {figure_text(trial, figure)}")
        parts.append(tag("g", told, marker(STYLE, x, y, 4.2)))
        if trial == method.best:
            parts.append(tag("circle", class_="stopped chosen", cx=f"{x:.1f}", cy=f"{y:.1f}", r=9, fill_opacity=0))
    # What diverged is worse than anything: a cross at the bad end.
    bad = up.end if figure.lower_is_better else up.start
    for trial in trials:
        if trial.value is None:
            x, told = across(trial.point[setting.name]), tag("title", f"{point_text(trial.point)}: diverged")
            parts.append(tag("path", told, class_="interval", d=f"M{x - 4:.1f},{bad - 4:.1f}l8,8m0,-8l-8,8"))
    return tag("g", *parts, class_=classes(STYLE))


def _across(
    setting: SearchedSetting, trials: Sequence[Trial], values: Sequence[Any], width: int
) -> tuple[Callable[[Any], float], list[tuple[Any, str]]]:
    """From a value to its position, and the ticks."""
    room = 8 if width > 500 else 5
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not setting.numeric or len(numbers) < len(values):
        places = Axis(-0.5, len(values) - 0.5, CHART_LEFT, width - CHART_RIGHT)
        order = list(values)
        return lambda value: places(order.index(value)), [(value, value_text(value)[:12]) for value in values]
    log = logarithmic(setting, trials)
    low, high = min(numbers), max(numbers)
    if log:
        margin = (high / low) ** 0.05 if high > low else 2.0
        axis = Axis(low / margin, high * margin, CHART_LEFT, width - CHART_RIGHT, logarithmic=True)
    else:
        margin = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
        axis = Axis(low - margin, high + margin, CHART_LEFT, width - CHART_RIGHT)
    named = numbers if len(numbers) <= room and setting.values else axis.ticks(room)
    return axis, [(value, tick_text(value)) for value in named]


def _up(trials: Sequence[Trial], height: int) -> Axis:
    values = [value for trial in trials for value in trial.values.values()] or [0.0, 1.0]
    low, high = min(values), max(values)
    margin = 0.12 * (high - low) or 0.1 * abs(high) or 0.1
    return Axis(low - margin, high + margin, height - CHART_BOTTOM, CHART_TOP)


HEAT_LEFT, HEAT_RIGHT, HEAT_TOP, HEAT_CELL, HEAT_BOTTOM = 62, 14, 26, 34, 40
MOST_VALUES = 16
"""Of a setting; more do not fit."""
FAINT, FULL = 0.06, 0.42
"""How much of its colour the worst and the best cell have."""


def draw_heat(method: MethodSearchRecord, figure: Figure, name: str, width: int) -> Markup:
    """The trials of a method with two searched settings: the second from left to right, the first downwards."""
    down, right = method.searched
    rows, columns = (
        sorted({trial.point[one.name] for trial in method.trials}) if one.numeric else list(one.values)
        for one in (down, right)
    )
    across = (width - HEAT_LEFT - HEAT_RIGHT) / max(1, len(columns))
    base = HEAT_TOP + HEAT_CELL * len(rows)
    parts: list[str] = [
        tag("text", down.name, class_="unit", x=4, y=13),
        tag("text", right.name, class_="unit end", x=width - HEAT_RIGHT, y=base + 35),
    ]
    for index, value in enumerate(rows):
        parts.append(
            tag(
                "text", value_text(value)[:8], class_="tick up", x=HEAT_LEFT - 8, y=HEAT_TOP + HEAT_CELL * (index + 0.5)
            )
        )
    for index, value in enumerate(columns):
        middle = f"{HEAT_LEFT + across * (index + 0.5):.1f}"
        parts.append(tag("text", value_text(value)[:8], class_="tick across", x=middle, y=base + 17))
    cells = []
    for trial in method.trials:
        x = HEAT_LEFT + across * columns.index(trial.point[right.name])
        y = HEAT_TOP + HEAT_CELL * rows.index(trial.point[down.name])
        cells.append(_cell(trial, method, figure, x, y, across))
    parts.append(tag("g", *cells, class_="c1"))
    best = "" if method.chosen is None else f" Best at {point_text(method.chosen)}."
    title = f"{figure.title} of {method.method} over {down.name} and {right.name}"
    told = f"{len(method.trials)} trials; a table below has them.{best}"
    return frame(name, title, told, width, base + HEAT_BOTTOM, parts, class_="chart heat")


def _cell(trial: Trial, method: MethodSearchRecord, figure: Figure, x: float, y: float, width: float) -> Markup:
    values = [one.value for one in method.trials if one.value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    share = 0.0
    if trial.value is not None:
        share = (trial.value - low) / (high - low) if high > low else 1.0
        share = 1 - share if figure.lower_is_better and high > low else share
    text = "×" if trial.value is None else number(trial.value, figure.digits if width > 44 else 0)
    box = {"x": f"{x + 1:.1f}", "y": f"{y + 1:.1f}", "width": f"{width - 2:.1f}", "height": HEAT_CELL - 2}
    parts: list[str] = [
        tag("title", f"{point_text(trial.point)}: {figure_text(trial, figure)}"),
        tag("rect", class_="bar", style=f"fill-opacity: {FAINT + (FULL - FAINT) * share:.3f}", **box),
        tag("text", text, class_="across", x=f"{x + width / 2:.1f}", y=y + HEAT_CELL / 2 + 4),
    ]
    if trial == method.best:
        parts.append(tag("rect", class_="interval chosen", **box))
    return tag("g", *parts)


MOST_CHARTS = 8
"""Of a method; more settings are in the table only."""
WIDE, NARROW = 320, 260
"""Heights on a desk and on a phone."""


def search_section(search: SearchRecord, index: int, folder: Path) -> Markup:
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
    for position, method in enumerate(search.methods, start=1):
        if method.searched and method.trials:
            parts.append(tag("h3", method.method))
            parts += _figures(method, search, f"{name}-m{position}")
            parts.append(_table(method, search))
    if search.folder is not None:
        place = Path(os.path.relpath(search.folder, folder)).as_posix()
        parts.append(tag("p", "Its runs are in ", tag("code", f"{place}/search"), ".", class_="note"))
    return tag("section", *parts, id=name, aria_labelledby=f"{name}-heading")


def _figures(method: MethodSearchRecord, search: SearchRecord, name: str) -> list[Markup]:
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


def _fits(method: MethodSearchRecord) -> bool:
    return all(len({trial.point[one.name] for trial in method.trials}) <= MOST_VALUES for one in method.searched)


def _draw(method: MethodSearchRecord, setting: SearchedSetting, search: SearchRecord, name: str, width: int) -> Markup:
    return draw_trials(method, setting, search.figure, name, width, WIDE if width > 500 else NARROW)


def _told(method: MethodSearchRecord, setting: SearchedSetting, search: SearchRecord) -> str:
    words = [f"{capitalised(search.figure.title)} of {method.method} against {setting.name}: a marker for every trial"]
    words.append(", small dots for its seeds" if len(search.seeds) > 1 else "")
    words.append(", a ring around the choice")
    words.append(", crosses where a run diverged." if any(trial.problem for trial in method.trials) else ".")
    words.append(" Logarithmic axis." if logarithmic(setting, method.trials) else "")
    return "".join([*words, f" Scale {search.scale}."])


def _table(method: MethodSearchRecord, search: SearchRecord) -> Markup:
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
