"""Searches of `isda tune`: their table, and what the page shows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isda.lab.report import charts
from isda.lab.report.statistics import mean_std
from isda.lab.report.tables import Cell, Column, Estimate, Table
from isda.lab.report.wording import counted, scale_note, seeds_text, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from isda.lab.engine.search import MethodSearchRecord, SearchRecord


def point_text(point: dict[str, Any]) -> str:
    """A point as in the options of a method.

    Example:
        >>> point_text({"lambda_0": 0.5, "lr": 0.1})
        'lambda_0=0.5, lr=0.1'
    """
    values = {name: f"{value:g}" if isinstance(value, float) else value for name, value in point.items()}
    return ", ".join(f"{name}={value}" for name, value in values.items())


def outcome(method: MethodSearchRecord) -> str:
    """The choice for a method, and its position among the values tried."""
    if not method.searched:
        return f"{method.method}: nothing to choose"
    trials = counted(len(method.trials), "trial")
    if method.chosen is None:
        return f"{method.method}: no choice after {trials}"
    return ", ".join([f"{method.method}: {point_text(method.chosen)} chosen after {trials}", *method.notes])


def search_table(search: SearchRecord) -> Table:
    """Every trial with its point and figure; the chosen one in bold."""
    figure = search.figure
    rows: list[list[Cell]] = []
    for method in search.methods:
        for trial in method.trials:
            chosen, values = trial == method.best, list(trial.values.values())
            value = Estimate(*mean_std(values), digits=figure.digits, strong=chosen) if values else None
            rows.append([method.method, point_text(trial.point), value, "chosen" if chosen else trial.problem])
    columns = [Column("method", "method"), Column("point", "tried"), Column(figure.name, figure.heading, "std")]
    better = "lower" if figure.lower_is_better else "higher"
    caption = [
        *(f"{outcome(method)}." for method in search.methods),
        f"{sentence(figure.title)} ({better} is better), {seeds_text(search.seeds)}.",
        f"Held out: {'; '.join(dict.fromkeys(method.held_out for method in search.methods))}.",
        scale_note(search),
        "" if search.finished else "The search is not finished.",
    ]
    title = f"Search on {search.title}"
    return Table(title, [*columns, Column("note", "")], rows, " ".join(filter(None, caption)))


def search_section(search: SearchRecord) -> dict[str, Any]:
    """What the page shows: outcomes, a chart for each numeric setting that was searched, and all trials."""
    drawings = []
    for method in search.methods:
        for setting in method.searched:
            if setting.numeric and any(trial.values for trial in method.trials):
                caption = (
                    f"{sentence(search.figure.heading)} of {method.method} against {setting.name}: means of trials, "
                    "small dots are seeds, a ring is the choice."
                )
                drawings.append((charts.svg(_draw_trials, 260, method, setting.name), caption))
    return {
        "title": f"Search on {search.title}",
        "headline": "; ".join(map(outcome, search.methods)),
        "charts": drawings,
        "results": search_table(search),
    }


def _draw_trials(method: MethodSearchRecord, name: str, ax: Axes) -> None:
    measured = sorted((trial.point[name], list(trial.values.values())) for trial in method.trials if trial.values)
    positions = [position for position, _ in measured]
    line = "-" if len(method.searched) == 1 else ""
    ax.plot(positions, [mean_std(values).mean for _, values in measured], f"o{line}", color=charts.COLOURS[1])
    for position, values in measured:
        ax.plot([position] * len(values), values, "o", color=charts.COLOURS[1], markersize=3, alpha=0.5)
    if method.best is not None and method.best.values:
        mean = mean_std(list(method.best.values.values())).mean
        ax.plot(method.best.point[name], mean, "o", markersize=14, color=charts.INK, markerfacecolor="none")
    if min(positions) > 0 and max(positions) > 4 * min(positions):
        ax.set_xscale("log")
    ax.grid(axis="y")
    ax.set(xlabel=name)
