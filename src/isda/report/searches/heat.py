"""The map of a search over two settings, as SVG: a cell for every pair of values, the better the darker."""

from __future__ import annotations

from isda.engine.folder.figures import Figure
from isda.engine.tuning.record import MethodSearch
from isda.engine.tuning.searched import value_text
from isda.engine.tuning.trials import Trial
from isda.report.charts import frame
from isda.report.markup import Markup, tag
from isda.report.searches.wording import figure_text, point_text
from isda.report.wording import number

__all__ = ["MOST_VALUES", "draw_heat"]

LEFT, RIGHT, TOP, CELL, BOTTOM = 62, 14, 26, 34, 40
MOST_VALUES = 16
"""Of a setting; more do not fit."""
FAINT, FULL = 0.06, 0.42
"""How much of its colour the worst and the best cell have."""


def draw_heat(method: MethodSearch, figure: Figure, name: str, width: int) -> Markup:
    """The trials of a method with two searched settings: the second from left to right, the first downwards."""
    down, right = method.searched
    rows, columns = (
        sorted({trial.point[one.name] for trial in method.trials}) if one.numeric else list(one.values)
        for one in (down, right)
    )
    across = (width - LEFT - RIGHT) / max(1, len(columns))
    base = TOP + CELL * len(rows)
    parts: list[str] = [
        tag("text", down.name, class_="unit", x=4, y=13),
        tag("text", right.name, class_="unit end", x=width - RIGHT, y=base + 35),
    ]
    for index, value in enumerate(rows):
        parts.append(tag("text", value_text(value)[:8], class_="tick up", x=LEFT - 8, y=TOP + CELL * (index + 0.5)))
    for index, value in enumerate(columns):
        middle = f"{LEFT + across * (index + 0.5):.1f}"
        parts.append(tag("text", value_text(value)[:8], class_="tick across", x=middle, y=base + 17))
    cells = []
    for trial in method.trials:
        x = LEFT + across * columns.index(trial.point[right.name])
        y = TOP + CELL * rows.index(trial.point[down.name])
        cells.append(_cell(trial, method, figure, x, y, across))
    parts.append(tag("g", *cells, class_="c1"))
    best = "" if method.chosen is None else f" Best at {point_text(method.chosen)}."
    title = f"{figure.title} of {method.method} over {down.name} and {right.name}"
    told = f"{len(method.trials)} trials; a table below has them.{best}"
    return frame(name, title, told, width, base + BOTTOM, parts, class_="chart heat")


def _cell(trial: Trial, method: MethodSearch, figure: Figure, x: float, y: float, width: float) -> Markup:
    values = [one.value for one in method.trials if one.value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    share = 0.0
    if trial.value is not None:
        share = (trial.value - low) / (high - low) if high > low else 1.0
        share = 1 - share if figure.lower_is_better and high > low else share
    text = "×" if trial.value is None else number(trial.value, figure.digits if width > 44 else 0)
    box = {"x": f"{x + 1:.1f}", "y": f"{y + 1:.1f}", "width": f"{width - 2:.1f}", "height": CELL - 2}
    parts: list[str] = [
        tag("title", f"{point_text(trial.point)}: {figure_text(trial, figure)}"),
        tag("rect", class_="bar", style=f"fill-opacity: {FAINT + (FULL - FAINT) * share:.3f}", **box),
        tag("text", text, class_="across", x=f"{x + width / 2:.1f}", y=y + CELL / 2 + 4),
    ]
    if trial == method.best:
        parts.append(tag("rect", class_="interval chosen", **box))
    return tag("g", *parts)
