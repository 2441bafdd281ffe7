"""What a search has found, in words, the same in the terminal and on the page."""

from __future__ import annotations

from isda.engine.folder.figures import Figure
from isda.engine.tuning.record import MethodSearch, Search
from isda.engine.tuning.searched import Point, value_text
from isda.engine.tuning.trials import Trial
from isda.report.statistics import mean_std
from isda.report.wording import counted, plus_minus, scale_text, seeds_text

__all__ = ["figure_text", "outcome", "point_text", "search_caption", "trial_note"]


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


def trial_note(trial: Trial, method: MethodSearch) -> str:
    """What is special about a trial."""
    words = ["chosen"] if trial.point == method.chosen and trial == method.best else []
    if trial.why.startswith("widened"):
        words.append("beyond the grid")
    if trial.why.startswith("refined"):
        words.append("between values of the grid")
    return ", ".join([*words, *([trial.problem] if trial.problem else [])])


def outcome(method: MethodSearch) -> str:
    """What was chosen for a method, and where that lies."""
    if not method.searched:
        return f"{method.method}: nothing to choose."
    trials = counted(len(method.trials), "trial")
    if method.chosen is None:
        return f"{method.method}: no choice after {trials}."
    where = "; ".join(method.notes) or "inside of what was tried"
    return f"{method.method}: {point_text(method.chosen)} after {trials}, {where}."


def search_caption(search: Search) -> str:
    """What the figures of a search are."""
    held = dict.fromkeys(one.told for one in search.methods)
    better = "lower" if search.figure.lower_is_better else "higher"
    told = (
        f"{search.figure.title[:1].upper()}{search.figure.title[1:]} ({better} is better), {seeds_text(search.seeds)}. "
        f"Held out: {'; '.join(held)}. Scale {scale_text(search.scale)}."
    )
    return told if search.finished else f"{told} The search is not finished."
