"""Several comparisons together: pooled effects, ranks, and a page with the forest plot of every method."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from isda import __version__
from isda.lab.files import write_text
from isda.lab.report.across import Effect, Ranking, friedman, pooled_effect
from isda.lab.report.charts import Axis, classes, frame, vertical_grid
from isda.lab.report.figure_tables import FigureTable
from isda.lab.report.markup import Markup, boxed_table, column, document, join, number_cell, tag
from isda.lab.report.statistics import LEVEL, Family, Interval, is_blind
from isda.lab.report.summary import Comparison
from isda.lab.report.wording import counted, difference_text, number, plus_minus

DIGITS = 2


@dataclass(frozen=True)
class ProblemResult:
    """One comparison as a problem among several: mean figures, and differences to the control."""

    title: str
    figure: str
    lower_is_better: bool
    control: str
    means: dict[str, float]
    intervals: Family


def problem_of(comparison: Comparison | FigureTable) -> ProblemResult:
    """A comparison of run folders or of a CSV file.

    Raises:
        ValueError: it has no control, or no method has two seeds.
    """
    if isinstance(comparison, FigureTable):
        figure, control = comparison.figures[0], comparison.control
        values = {name: list(runs.values()) for name, runs in comparison.by_seed(figure).items()}
        family = comparison.family(figure)
    else:
        figure, named = comparison.figure.name, comparison.baseline.runs[0].is_baseline
        control = comparison.baseline.label if named else None
        values = {method.label: list(method.values.values()) for method in comparison.methods}
        family = comparison.intervals
    if control is None:
        raise ValueError(f"--across needs a control in every comparison, got none in {comparison.title}")
    if not family.errors:
        raise ValueError(f"--across needs two seeds of every comparison, got fewer in {comparison.title}")
    lower = comparison.lower_is_better if isinstance(comparison, FigureTable) else comparison.figure.lower_is_better
    means = {name: math.fsum(found) / len(found) for name, found in values.items() if found}
    return ProblemResult(comparison.title, figure, lower, control, means, family)


@dataclass(frozen=True)
class Across:
    """Methods over several problems."""

    problems: tuple[ProblemResult, ...]
    effects: dict[str, Effect]
    """Of each method that has a difference on two problems or more."""
    ranking: Ranking | None
    """Of the methods that every problem has; None with fewer than two."""

    @property
    def figure(self) -> str:
        """The name of the figure."""
        return self.problems[0].figure

    @property
    def level(self) -> float:
        """Of each interval of an effect: `LEVEL` for all of them simultaneously (Bonferroni)."""
        return _level(len(self.effects))

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "figure": self.figure,
            "problems": [problem.title for problem in self.problems],
            "level": LEVEL,
            "level_of_each": self.level,
            "effects": {name: effect._asdict() for name, effect in self.effects.items()},
            "ranking": None if self.ranking is None else self.ranking._asdict(),
            "differences": {
                name: {
                    problem.title: problem.intervals[name]._asdict()
                    for problem in self.problems
                    if name in problem.intervals
                }
                for name in self.effects
            },
        }

    def caption(self) -> str:
        """How effects and ranks were made."""
        count = counted(len(self.problems), "problem")
        words = [
            f"Δ vs {self.problems[0].control} in {self.figure} over {count}: random-effects meta-analysis of "
            "paired differences (DerSimonian and Laird; Hartung and Knapp's interval), simultaneous 95% confidence "
            f"intervals (Bonferroni, {counted(len(self.effects), 'method')}). τ is the standard deviation of true "
            "differences between problems, I² their share of the variance, with the p-value of Cochran's Q."
        ]
        if any(effect.half_width is None for effect in self.effects.values()):
            words.append("Intervals are left out where there are too few problems.")
        if self.ranking is not None:
            words.append(
                f"Mean rank over {count}, 1 is best: Friedman p = {self.ranking.p:.2g}; Nemenyi's critical difference "
                f"{self.ranking.critical_difference:.2f} (95%, all pairs); p to the control corrected by Holm."
            )
        return " ".join(words)

    HEADS = ("method", "problems", "difference", "τ", "I²", "Q, p", "mean rank", "rank to control, p")

    def rows(self) -> list[list[str]]:
        """One row per method, the control last if it has a rank."""
        ranking = self.ranking
        rows = []
        for name, effect in self.effects.items():
            cells = [name, str(effect.problems), difference_text(effect.interval, DIGITS), number(effect.between)]
            cells += [f"{100 * effect.heterogeneity:.0f}%", f"{effect.p_heterogeneity:.2g}"]
            ranked = ranking is not None and name in ranking.ranks
            cells += [number(ranking.ranks[name]), f"{ranking.p_control[name]:.2g}"] if ranking and ranked else ["", ""]
            rows.append(cells)
        if ranking is not None:
            control = self.problems[0].control
            rows.append([control, str(ranking.problems), "", "", "", "", number(ranking.ranks[control]), ""])
        return rows


def _level(count: int) -> float:
    return 1 - (1 - LEVEL) / max(1, count)


def compare_across(comparisons: Sequence[Comparison | FigureTable]) -> Across:
    """Pool the differences of several comparisons.

    Raises:
        ValueError: fewer than two comparisons, or they differ in figure or control, or share no method.
    """
    problems = tuple(map(problem_of, comparisons))
    if len(problems) < 2:
        raise ValueError(f"--across needs at least 2 comparisons, got {len(problems)}")
    for what in ("figure", "control"):
        found = list(dict.fromkeys(getattr(problem, what) for problem in problems))
        if len(found) > 1:
            raise ValueError(f"--across needs comparisons with the same {what}, got {', '.join(found)}")
    names = dict.fromkeys(name for problem in problems for name in problem.intervals.errors)
    shared = [name for name in names if sum(name in problem.intervals.errors for problem in problems) > 1]
    if not shared:
        raise ValueError("--across needs a method that two comparisons share, got none")
    effects = {name: _effect(name, problems, _level(len(shared))) for name in shared}
    control, sign = problems[0].control, 1 if problems[0].lower_is_better else -1
    everywhere = [name for name in (*shared, control) if all(name in problem.means for problem in problems)]
    ranking = None
    if len(everywhere) > 1 and control in everywhere:
        ranking = friedman({name: [sign * p.means[name] for p in problems] for name in everywhere}, control)
    return Across(problems, effects, ranking)


def _effect(name: str, problems: Sequence[ProblemResult], level: float) -> Effect:
    found = [problem.intervals for problem in problems if name in problem.intervals.errors]
    effect = pooled_effect([family[name].mean for family in found], [family.errors[name] for family in found], level)
    blind = is_blind(float(stdtrit(len(found) - 1, (1 + level) / 2)), level, 1)
    return effect._replace(half_width=None) if blind else effect


WIDE, NARROW = 800, 360
SIDE, TOP, ROW, BOTTOM = 14, 8, 40, 30
CHARACTER = 7.2
"""Upper estimate of the mean width of a character of a label."""


def draw_across(across: Across, name: str, identifier: str, width: int) -> Markup:
    """The forest plot of one method: a row per problem, and a diamond for the pooled difference."""
    effect = across.effects[name]
    shown = [(problem.title, problem.intervals.shown(name)) for problem in across.problems]
    rows = [(title, interval) for title, interval in shown if interval is not None]
    pooled = effect.interval
    axis = _axis([*(interval for _, interval in rows), pooled], width)
    base = TOP + ROW * (len(rows) + 1)
    zero = f"{axis(0):.1f}"
    parts = vertical_grid(axis, TOP, base, width)
    parts.append(tag("line", class_="zero", x1=zero, x2=zero, y1=TOP, y2=base))
    parts += [_row(title, interval, axis, TOP + ROW * index) for index, (title, interval) in enumerate(rows)]
    parts.append(_diamond(f"{counted(effect.problems, 'problem')} pooled", pooled, axis, base - ROW))
    described = "; ".join(f"{title} {difference_text(interval, DIGITS)}" for title, interval in rows)
    title = f"Difference of {name} to {across.problems[0].control} on every problem"
    words = f"{described}; pooled {difference_text(pooled, DIGITS)}."
    return frame(identifier, title, words, width, base + BOTTOM, parts, class_="chart forest")


def _axis(intervals: Sequence[Interval], width: int) -> Axis:
    ends = [0.0]
    for mean, half_width in intervals:
        ends += [mean - (half_width or 0), mean + (half_width or 0)]
    margin = 0.08 * (max(ends) - min(ends)) or 1.0
    return Axis(min(ends) - margin, max(ends) + margin, SIDE, width - SIDE)


def _labels(label: str, interval: Interval, axis: Axis, top: float) -> list[str]:
    text = difference_text(interval, DIGITS)
    characters = int((axis.end - axis.start) / CHARACTER) - len(text) - 2
    shown = label if len(label) <= characters else f"{label[: characters - 1]}…"
    return [
        tag("text", shown, class_="name", x=axis.start, y=top + 16),
        tag("text", text, class_="value end", x=axis.end, y=top + 16),
    ]


def _row(label: str, interval: Interval, axis: Axis, top: float) -> Markup:
    mean, half_width = interval
    parts, middle = _labels(label, interval, axis, top), top + 28
    if half_width is not None:
        low, high = axis(mean - half_width), axis(mean + half_width)
        parts.append(tag("path", class_="interval", d=f"M{low:.1f},{middle}H{high:.1f}"))
    parts.append(tag("rect", class_="dot", x=f"{axis(mean) - 4:.1f}", y=middle - 4, width=8, height=8))
    return tag("g", *parts, class_=classes(1))


def _diamond(label: str, interval: Interval, axis: Axis, top: float) -> Markup:
    mean, half_width = interval
    middle = top + 28
    low, high = (axis(mean + sign * (half_width or 0)) for sign in (-1, 1))
    shape = f"M{low:.1f},{middle}L{axis(mean):.1f},{middle - 8}L{high:.1f},{middle}L{axis(mean):.1f},{middle + 8}z"
    return tag("g", *_labels(label, interval, axis, top), tag("path", class_="dot pooled", d=shape), class_=classes(2))


def write_across(across: Across, path: Path, title: str | None, command: str) -> None:
    """Write the page, atomically: a table of all methods, and the forest plot of each."""
    methods = counted(len(across.effects), "method")
    heading = title or f"{methods} over {counted(len(across.problems), 'problem')}"
    head = [
        column(text.capitalize() if index == 0 else text, numeric=index > 0) for index, text in enumerate(Across.HEADS)
    ]
    rows = [[tag("th", cells[0], scope="row"), *map(number_cell, cells[1:])] for cells in across.rows()]
    sections = [tag("section", boxed_table("Effects over all problems", across.caption(), head, rows))]
    for index, name in enumerate(across.effects, start=1):
        caption = (
            f"Difference of {name} to {across.problems[0].control} in {across.figure}: bars are the simultaneous 95% "
            "confidence intervals of each problem, the diamond is the pooled difference with its interval."
        )
        sections.append(
            tag("section", tag("h2", name), _figure(f"a{index}", partial(draw_across, across, name), caption))
        )
    sections.append(tag("section", tag("h2", "Figures by problem"), _means(across)))
    lede = f"{methods} compared with {across.problems[0].control} by {across.figure}."
    header = tag("header", tag("p", "isda report", class_="kicker"), tag("h1", heading), tag("p", lede, class_="lede"))
    footer = tag("footer", tag("p", join(["Made by ", tag("code", command), f" with isda {__version__}."])))
    write_text(path, document(heading, header, tag("main", *sections), footer))


def _figure(name: str, draw: Callable[[str, int], Markup], caption: str) -> Markup:
    return tag(
        "figure",
        tag("div", draw(name, WIDE), class_="desk"),
        tag("div", draw(f"{name}-phone", NARROW), class_="phone"),
        tag("figcaption", caption),
    )


def _means(across: Across) -> Markup:
    """Each method's mean and difference on each problem."""
    names = [across.problems[0].control, *across.effects]
    head = [column("Problem"), *(column(name, numeric=True) for name in names)]
    rows = []
    for problem in across.problems:
        cells = [number_cell(number(problem.means[names[0]]) if names[0] in problem.means else "–")]
        for name in names[1:]:
            interval = problem.intervals.shown(name)
            cells.append(number_cell(plus_minus(*interval, DIGITS, sign=True) if interval else "–"))
        rows.append([tag("th", problem.title, scope="row"), *cells])
    text = (
        f"Mean {across.figure} of {names[0]}, and differences to it (simultaneous 95% confidence intervals by problem)."
    )
    return boxed_table("Figures by problem", text, head, rows)
