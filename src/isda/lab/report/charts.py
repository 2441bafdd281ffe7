"""Charts by matplotlib, as SVG whose colours follow the page: one drawing for phones, desks, light and dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from isda.lab.engine.run_records import is_number
from isda.lab.report.statistics import t_interval
from isda.lab.report.wording import difference_text
from isda.lab.tasks.common.predictions import BINS
from isda.lab.text import escape_control_characters

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from isda.lab.engine.config import Curve
    from isda.lab.report.comparison import Comparison
    from isda.lab.report.predictions import MethodPredictions

WIDTH = 400
"""Of a drawing, in units that are about a pixel on a phone."""
PAPER, INK, SOFT, RULE = "#fdfcf9", "#1d2126", "#565c65", "#d9d5cb"
COLOURS = ("#63686f", "#1a55d9", "#d65d0e", "#2c9464", "#bb35ad", "#5e3500")
"""Of the methods, the baseline's first; they stay apart under every common colour blindness."""
VARIABLES = {PAPER: "paper", INK: "ink", SOFT: "soft", RULE: "rule"} | {
    colour: f"c{index}" for index, colour in enumerate(COLOURS)
}
"""The CSS variable that replaces each colour on a page."""
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1.2, 1.2), (5, 1.5, 1, 1.5), (7, 2), (2.5, 1, 0.8, 1))
"""In units of the line width."""
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "isda",
    "font.size": 12.5,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "grid.color": RULE,
}
"""Settings of matplotlib; the text is legible where a phone shows the drawing."""


def colour(style: int) -> str:
    """The colour of the method at a position in its comparison."""
    return COLOURS[style % len(COLOURS)]


def dash(style: int) -> tuple[float, ...]:
    """Its dashes, shifted on each round through the colours, so that colour and dashes together are unique."""
    return DASHES[(style + style // len(COLOURS)) % len(DASHES)]


def svg(draw: Callable[..., object], height: float, *arguments: object) -> Markup:
    """What ``draw(*arguments, axes)`` draws, that high in the units of `WIDTH`, with CSS variables as colours."""
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser has fonts of its own
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained", facecolor="none")
        draw(*arguments, figure.add_subplot())
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    # The key of a page hides the groups of a method; other ids would not be unique on a page.
    text = re.sub(r'<g id="method-(\d+)"', r'<g class="m\1"', text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"font: (bold )?([\d.]+px)[^;\"]*", r"font-weight: \1; font-size: \2", text)
    for name, variable in VARIABLES.items():
        text = text.replace(name, f"var(--{variable})")
    return Markup(re.sub(r"<svg[^>]*>", f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}">', text, count=1))


LONGEST = 28
"""Characters of a label that leave room for its difference."""


def draw_differences(comparison: Comparison, ax: Axes) -> Axes:
    """The differences to the baseline: the interval and mean of each method, and below it the seeds."""
    figure = comparison.figure
    for style, method in enumerate(comparison.methods):
        difference = comparison.differences.get(method.label)
        if difference is None:
            continue
        row = list(comparison.differences).index(method.label)
        line: dict[str, Any] = {"color": colour(style), "gid": f"method-{style}"}
        ax.errorbar(
            difference.mean, row, xerr=difference.half_width, fmt="o", markersize=7, capsize=4, elinewidth=2, **line
        )
        seeds = list(comparison.paired_seeds(method.label).values())
        ax.plot(seeds, [row + 0.25] * len(seeds), "o", markersize=4, alpha=0.6, **line)
        ax.vlines(0, row - 0.15, row + 0.4, color=INK, linewidth=1)
        text: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "va": "bottom", "parse_math": False}
        label = escape_control_characters(method.label)
        label = label if len(label) <= LONGEST else f"{label[:LONGEST]}…"
        ax.text(0, row - 0.22, label, fontweight="bold", in_layout=False, **text)
        ax.text(1, row - 0.22, difference_text(difference, figure.digits), ha="right", **text)
    unit = f", {figure.difference_unit}" if figure.difference_unit else ""
    ax.set(ylim=(len(comparison.differences) - 0.5, -0.6), yticks=[], xlabel=f"difference in {figure.title}{unit}")
    ax.spines["left"].set_visible(False)
    return ax


EARLY = 0.15
"""The share of first epochs, with steep curves, that may leave a chart."""
DECADES = 30.0
"""A loss that spans more than this factor gets a logarithmic axis; a linear one would hide its end."""


def draw_curves(comparison: Comparison, curve: Curve, ax: Axes) -> None:
    """A metric over the epochs: means over finished runs, the range over seeds, and single unfinished runs."""
    for style, method in enumerate(comparison.methods):
        line: dict[str, Any] = {"color": colour(style), "gid": f"method-{style}"}
        finished = []
        for run in method.runs:
            points = dict(run.curve(curve.metric))
            if run.result is not None and points:
                finished.append(points)
            elif points:
                ax.plot(list(points), list(points.values()), linewidth=1, alpha=0.7, **line)
                ax.plot(*list(points.items())[-1], "o", markerfacecolor=PAPER, **line)
        if finished:
            epochs = sorted(set.intersection(*(set(points) for points in finished)))
            table = np.array([[points[epoch] for epoch in epochs] for points in finished])
            ax.plot(epochs, table.mean(0), linewidth=2, dashes=dash(style), **line)
            ax.fill_between(epochs, table.min(0), table.max(0), alpha=0.16, linewidth=0, **line)
    everything = np.array([point for run in comparison.runs for point in run.curve(curve.metric)])
    values, later = everything[:, 1], everything[everything[:, 0] > EARLY * comparison.config.epochs, 1]
    if curve.logarithmic and values.min() > 0 and values.max() > DECADES * values.min():
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
    elif curve.metric == comparison.figure.metric and len(later):
        margin = 0.06 * np.ptp(later) or 0.1
        ax.set_ylim(max(0, later.min() - margin), later.max() + margin)
    ax.locator_params(axis="x", integer=True)
    ax.grid(axis="y")
    ax.set(xlabel="epoch")


def draw_reliability(method: MethodPredictions, ax: Axes) -> None:
    """Accuracy by confidence, and below it how many predictions have that confidence."""
    middles, accuracies, shares = 100 * np.array(method.bins()).T
    width = 92 / BINS
    ax.bar(middles, accuracies, width, color=colour(method.style), alpha=0.45)
    ax.plot([0, 100], [0, 100], color=INK, linewidth=1)
    ax.set(xlim=(0, 100), ylim=(0, 100), ylabel="accuracy, %")
    ax.tick_params(labelbottom=False)
    below = ax.inset_axes((0, -0.36, 1, 0.24), sharex=ax)
    below.bar(middles, shares, width, color=SOFT, alpha=0.5)
    below.set(xlabel="confidence, %", ylabel="images, %")


def draw_classes(comparison: Comparison, key: str, names: Sequence[str], ax: Axes) -> None:
    """A metric of each class: the mean of each method over seeds, with its interval."""
    count = len(comparison.methods)
    for style, method in enumerate(comparison.methods):
        stored = [(run.result or {}).get("per_class") or {} for run in method.runs]
        for row, name in enumerate(names):
            values = [of[key][name] for of in stored if is_number(of.get(key, {}).get(name))]
            if values:
                place, (mean, half_width) = row + 0.7 * ((style + 0.5) / count - 0.5), t_interval(values)
                line: dict[str, Any] = {"color": colour(style), "gid": f"method-{style}"}
                ax.errorbar(mean, place, xerr=half_width, fmt="o", markersize=4, **line)
    labels = [escape_control_characters(name)[:16] for name in names]
    ax.set_yticks(range(len(names)), labels, parse_math=False)
    ax.set(ylim=(len(names) - 0.5, -0.5))
    if ax.get_xlim()[0] < 0:
        ax.set_xlim(left=0)
    ax.grid(axis="x")
