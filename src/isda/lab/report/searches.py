"""The section of one `isda tune` search on the page: outcome, charts of the trials, table."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from isda.lab.engine.config import Figure
from isda.lab.engine.search import MethodSearchRecord, Point, SearchedSetting, SearchRecord, Trial, value_text
from isda.lab.report.charts import Axis, classes, frame, horizontal_grid, marker, tick_text
from isda.lab.report.markup import Markup, boxed_table, column, number_cell, tag
from isda.lab.report.sections import wide_figure
from isda.lab.report.statistics import mean_std
from isda.lab.report.wording import capitalised, counted, number, plus_minus, scale_note, seeds_text


def point_text(point: Point) -> str:
    """A point as in the options of a method.

    Example:
        >>> point_text({"lambda_0": 0.5, "lr": 0.1})
        'lambda_0=0.5, lr=0.1'
    """
    return ", ".join(f"{name}={value_text(value)}" for name, value in point.items())


def figure_text(trial: Trial, figure: Figure) -> str:
    """The metric of a trial over its seeds."""
    return plus_minus(*mean_std(list(trial.values.values())), figure.digits) if trial.values else "diverged"


def trial_note(trial: Trial, method: MethodSearchRecord) -> str:
    """Whether a trial was chosen, where its point comes from, and its problem."""
    words = ["chosen"] if trial.point == method.chosen and trial == method.best else []
    return ", ".join([*words, *([trial.problem] if trial.problem else [])])


def outcome(method: MethodSearchRecord) -> str:
    """The choice for a method, and its position in the grid."""
    if not method.searched:
        return f"{method.method}: nothing to choose."
    trials = counted(len(method.trials), "trial")
    if method.chosen is None:
        return f"{method.method}: no choice after {trials}."
    position = "; ".join(method.notes) or "inside of what was tried"
    return f"{method.method}: {point_text(method.chosen)} after {trials}, {position}."


def search_caption(search: SearchRecord) -> str:
    """The caption of a search: metric, seeds, held-out data and scale."""
    held_out = dict.fromkeys(method.held_out for method in search.methods)
    better = "lower" if search.figure.lower_is_better else "higher"
    caption = (
        f"{search.figure.title[:1].upper()}{search.figure.title[1:]} ({better} is better), {seeds_text(search.seeds)}. "
        f"Held out: {'; '.join(held_out)}.{scale_note(search, described=True)}"
    )
    return caption if search.finished else f"{caption} The search is not finished."


CHART_LEFT, CHART_RIGHT, CHART_TOP, CHART_BOTTOM = 46, 20, 26, 40
STYLE = 1
"""Of the only method of a chart."""
MOST_EVEN = 5.0
"""A grid whose largest value is more than this many times its smallest has a logarithmic axis."""
MOST_LABELS = 12
"""Most trials in the description of a chart."""


def logarithmic(setting: SearchedSetting, trials: Sequence[Trial]) -> bool:
    """Whether the values of a setting are positive and far apart, for a logarithmic axis."""
    if not setting.numeric:
        return False
    tried = sorted({trial.point[setting.name] for trial in trials})
    return len(tried) > 2 and tried[0] > 0 and tried[-1] > MOST_EVEN * tried[0]


def draw_trials(
    method: MethodSearchRecord, setting: SearchedSetting, figure: Figure, name: str, width: int, height: int
) -> Markup:
    """The trials of a method against a setting, joined by a line if it is the only one on a grid."""
    trials = sorted(method.trials, key=lambda trial: (str(type(trial.point[setting.name])), trial.point[setting.name]))
    values = list(dict.fromkeys(trial.point[setting.name] for trial in trials))
    across, ticks = _across(setting, trials, values, width)
    up = _up(trials, height)
    base = height - CHART_BOTTOM
    parts = horizontal_grid(up, figure.heading, CHART_LEFT, width - CHART_RIGHT)
    for tick, text in ticks:
        parts.append(tag("text", text, class_="tick across", x=f"{across(tick):.1f}", y=base + 17))
    parts.append(tag("text", setting.name, class_="unit end", x=width - CHART_RIGHT, y=base + 35))
    parts.append(_trials(method, trials, setting, figure, across, up))
    described = "; ".join(_trial_text(trial, figure) for trial in trials[:MOST_LABELS])
    more = f" and {len(trials) - MOST_LABELS} more, in the table below" if len(trials) > MOST_LABELS else ""
    title = f"{figure.title} of {method.method} against {setting.name}"
    return frame(name, title, f"{described}{more}.", width, height, parts, class_="chart trials")


def _trial_text(trial: Trial, figure: Figure) -> str:
    return f"{point_text(trial.point)}: {figure_text(trial, figure)}"


def _trials(
    method: MethodSearchRecord,
    trials: Sequence[Trial],
    setting: SearchedSetting,
    figure: Figure,
    across: Callable[[Any], float],
    up: Axis,
) -> Markup:
    measured = [
        (across(trial.point[setting.name]), up(trial.value), trial) for trial in trials if trial.value is not None
    ]
    parts: list[str] = []
    if len(method.searched) == 1 and setting.numeric and setting.values and len(measured) > 1:
        parts.append(tag("path", class_="seed", d="M" + "L".join(f"{x:.1f},{y:.1f}" for x, y, _ in measured)))
    for x, y, trial in measured:
        if len(trial.values) > 1:
            for value in trial.values.values():
                parts.append(tag("circle", class_="dot", cx=f"{x:.1f}", cy=f"{up(value):.1f}", r=2))
        parts.append(tag("g", tag("title", _trial_text(trial, figure)), marker(STYLE, x, y, 4.2)))
        if trial == method.best:
            parts.append(tag("circle", class_="stopped chosen", cx=f"{x:.1f}", cy=f"{y:.1f}", r=9, fill_opacity=0))
    # Trials that diverged are crosses at the worst end.
    worst = up.end if figure.lower_is_better else up.start
    for trial in trials:
        if trial.value is None:
            x, title = across(trial.point[setting.name]), tag("title", f"{point_text(trial.point)}: diverged")
            parts.append(tag("path", title, class_="interval", d=f"M{x - 4:.1f},{worst - 4:.1f}l8,8m0,-8l-8,8"))
    return tag("g", *parts, class_=classes(STYLE))


def _across(
    setting: SearchedSetting, trials: Sequence[Trial], values: Sequence[Any], width: int
) -> tuple[Callable[[Any], float], list[tuple[Any, str]]]:
    """The position of each value, and the ticks."""
    most = 8 if width > 500 else 5
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not setting.numeric or len(numbers) < len(values):
        positions = Axis(-0.5, len(values) - 0.5, CHART_LEFT, width - CHART_RIGHT)
        order = list(values)
        return lambda value: positions(order.index(value)), [(value, value_text(value)[:12]) for value in values]
    log = logarithmic(setting, trials)
    low, high = min(numbers), max(numbers)
    if log:
        margin = (high / low) ** 0.05 if high > low else 2.0
        axis = Axis(low / margin, high * margin, CHART_LEFT, width - CHART_RIGHT, logarithmic=True)
    else:
        margin = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
        axis = Axis(low - margin, high + margin, CHART_LEFT, width - CHART_RIGHT)
    named = numbers if len(numbers) <= most and setting.values else axis.ticks(most)
    return axis, [(value, tick_text(value)) for value in named]


def _up(trials: Sequence[Trial], height: int) -> Axis:
    values = [value for trial in trials for value in trial.values.values()] or [0.0, 1.0]
    low, high = min(values), max(values)
    margin = 0.12 * (high - low) or 0.1 * abs(high) or 0.1
    return Axis(low - margin, high + margin, height - CHART_BOTTOM, CHART_TOP)


HEAT_LEFT, HEAT_RIGHT, HEAT_TOP, HEAT_CELL, HEAT_BOTTOM = 62, 14, 26, 34, 40
MOST_VALUES = 16
"""Most values of a setting that fit."""
FAINT, FULL = 0.06, 0.42
"""Opacity of the worst and the best cell."""


def draw_heat(method: MethodSearchRecord, figure: Figure, name: str, width: int) -> Markup:
    """The trials of a method with two searched settings: the second horizontally, the first vertically."""
    down, right = method.searched
    rows, columns = (
        sorted({trial.point[setting.name] for trial in method.trials}) if setting.numeric else list(setting.values)
        for setting in (down, right)
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
    description = f"{len(method.trials)} trials; a table below has them.{best}"
    return frame(name, title, description, width, base + HEAT_BOTTOM, parts, class_="chart heat")


def _cell(trial: Trial, method: MethodSearchRecord, figure: Figure, x: float, y: float, width: float) -> Markup:
    values = [other.value for other in method.trials if other.value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    share = 0.0
    if trial.value is not None:
        share = (trial.value - low) / (high - low) if high > low else 1.0
        share = 1 - share if figure.lower_is_better and high > low else share
    text = "×" if trial.value is None else number(trial.value, figure.digits if width > 44 else 0)
    box = {"x": f"{x + 1:.1f}", "y": f"{y + 1:.1f}", "width": f"{width - 2:.1f}", "height": HEAT_CELL - 2}
    parts: list[str] = [
        tag("title", _trial_text(trial, figure)),
        tag("rect", class_="bar", style=f"fill-opacity: {FAINT + (FULL - FAINT) * share:.3f}", **box),
        tag("text", text, class_="across", x=f"{x + width / 2:.1f}", y=y + HEAT_CELL / 2 + 4),
    ]
    if trial == method.best:
        parts.append(tag("rect", class_="interval chosen", **box))
    return tag("g", *parts)


MOST_CHARTS = 8
"""Most charts of a method; other settings are only in the table."""
WIDE, NARROW = 320, 260
"""Heights on wide and narrow screens."""


def search_section(search: SearchRecord, index: int, folder: Path) -> Markup:
    """The section of one search; `index` is its number on the page, its folder is named relative to `folder`."""
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
        path = Path(os.path.relpath(search.folder, folder)).as_posix()
        parts.append(tag("p", "Its runs are in ", tag("code", f"{path}/search"), ".", class_="note"))
    return tag("section", *parts, id=name, aria_labelledby=f"{name}-heading")


def _figures(method: MethodSearchRecord, search: SearchRecord, name: str) -> list[Markup]:
    figure = search.figure
    sizes = [len({trial.point[setting.name] for trial in method.trials}) for setting in method.searched]
    if len(method.searched) == 2 and max(sizes) <= MOST_VALUES:
        caption = (
            f"{capitalised(figure.title)} of {method.method} at every pair of values tried: the darker the better, the "
            f"choice framed, × where a run diverged.{scale_note(search)}"
        )
        return [wide_figure(name, partial(draw_heat, method, figure), caption)]
    return [
        wide_figure(f"{name}-{index}", partial(_draw, method, setting, search), _caption(method, setting, search))
        for index, setting in enumerate(method.searched[:MOST_CHARTS], start=1)
    ]


def _draw(method: MethodSearchRecord, setting: SearchedSetting, search: SearchRecord, name: str, width: int) -> Markup:
    return draw_trials(method, setting, search.figure, name, width, WIDE if width > 500 else NARROW)


def _caption(method: MethodSearchRecord, setting: SearchedSetting, search: SearchRecord) -> str:
    words = [f"{capitalised(search.figure.title)} of {method.method} against {setting.name}: a marker for every trial"]
    words.append(", small dots for its seeds" if len(search.seeds) > 1 else "")
    words.append(", a ring around the choice")
    words.append(", crosses where a run diverged." if any(trial.problem for trial in method.trials) else ".")
    words.append(" Logarithmic axis." if logarithmic(setting, method.trials) else "")
    return "".join([*words, scale_note(search)])


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
    caption = f"Every trial of {method.method}: mean ± standard deviation over seeds.{scale_note(search)}"
    table = boxed_table(f"Trials of {method.method} on {search.title}", caption, head, rows)
    return tag("details", tag("summary", f"The {len(method.trials)} trials as a table"), table)
