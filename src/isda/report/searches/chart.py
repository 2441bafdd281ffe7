"""The chart of a search, as SVG: the held-out figure of every trial against one setting, the choice marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from isda.engine.folder.figures import Figure
from isda.engine.tuning.record import MethodSearch
from isda.engine.tuning.searched import Searched, value_text
from isda.engine.tuning.steps import by_ratio
from isda.engine.tuning.trials import Trial
from isda.report.axes import Axis
from isda.report.charts import frame, tick_text
from isda.report.markup import Markup, tag
from isda.report.method_styles import classes, marker
from isda.report.searches.wording import figure_text, point_text

__all__ = ["draw_trials", "logarithmic"]

LEFT, RIGHT, TOP, BOTTOM = 46, 20, 26, 40
STYLE = 1
"""The look of a method; in these charts there is only one."""
MOST_LABELS = 12
"""Values that are all named below the axis."""


def logarithmic(setting: Searched, trials: Sequence[Trial]) -> bool:
    """Whether a logarithmic axis suits the values of a setting: where they go by ratios, and are positive."""
    if not setting.numeric:
        return False
    if not setting.values:
        return setting.low is not None and setting.low > 0
    tried = sorted({trial.point[setting.name] for trial in trials})
    return len(tried) > 1 and tried[0] > 0 and by_ratio(tried)


def draw_trials(method: MethodSearch, setting: Searched, figure: Figure, name: str, width: int, height: int) -> Markup:
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
    base = height - BOTTOM
    parts: list[str] = [tag("text", figure.heading, class_="unit", x=4, y=13)]
    for value in up.ticks(5):
        y = f"{up(value):.1f}"
        parts.append(tag("line", class_="grid", x1=LEFT, x2=width - RIGHT, y1=y, y2=y))
        parts.append(tag("text", tick_text(value), class_="tick up", x=LEFT - 8, y=y))
    parts.append(tag("line", class_="axis", x1=LEFT, x2=width - RIGHT, y1=base, y2=base))
    for tick, text in ticks:
        parts.append(tag("text", text, class_="tick across", x=f"{across(tick):.1f}", y=base + 17))
    parts.append(tag("text", setting.name, class_="unit end", x=width - RIGHT, y=base + 35))
    parts.append(_trials(method, trials, setting, figure, across, up))
    told = "; ".join(f"{point_text(trial.point)}: {figure_text(trial, figure)}" for trial in trials[:MOST_LABELS])
    more = f" and {len(trials) - MOST_LABELS} more, in the table below" if len(trials) > MOST_LABELS else ""
    title = f"{figure.title} of {method.method} against {setting.name}"
    return frame(name, title, f"{told}{more}.", width, height, parts, class_="chart trials")


def _trials(
    method: MethodSearch,
    trials: Sequence[Trial],
    setting: Searched,
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
    setting: Searched, trials: Sequence[Trial], values: Sequence[Any], width: int
) -> tuple[Callable[[Any], float], list[tuple[Any, str]]]:
    """From a value to its position, and the ticks."""
    room = 8 if width > 500 else 5
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if not setting.numeric or len(numbers) < len(values):
        places = Axis(-0.5, len(values) - 0.5, LEFT, width - RIGHT)
        order = list(values)
        return lambda value: places(order.index(value)), [(value, value_text(value)[:12]) for value in values]
    log = logarithmic(setting, trials)
    low, high = min(numbers), max(numbers)
    if log:
        margin = (high / low) ** 0.05 if high > low else 2.0
        axis = Axis(low / margin, high * margin, LEFT, width - RIGHT, logarithmic=True)
    else:
        margin = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
        axis = Axis(low - margin, high + margin, LEFT, width - RIGHT)
    named = numbers if len(numbers) <= room and setting.values else axis.ticks(room)
    return axis, [(value, tick_text(value)) for value in named]


def _up(trials: Sequence[Trial], height: int) -> Axis:
    values = [value for trial in trials for value in trial.values.values()] or [0.0, 1.0]
    low, high = min(values), max(values)
    margin = 0.12 * (high - low) or 0.1 * abs(high) or 0.1
    return Axis(low - margin, high + margin, height - BOTTOM, TOP)
