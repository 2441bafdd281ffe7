"""Figures made of predictions: reliability diagrams, confusion matrices, and pictures of mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from isda.lab.report.charts import Axis, colour_class, frame, horizontal_grid, tick_text
from isda.lab.report.markup import Markup, boxed_table, column, data_uri, number_cell, tag
from isda.lab.report.predictions import Bin, MethodPredictions, Mistake, most_confused
from isda.lab.report.summary import Comparison
from isda.lab.report.wording import counted, number, scale_note
from isda.lab.tasks.common.pictures import png_bytes
from isda.lab.tasks.common.predictions import BINS

WIDTH = 360
"""Of a diagram or matrix: two stand beside each other on a desk."""
MOST_IN_MATRIX = 20
"""With more classes, the most confused pairs are listed instead of a matrix."""
MOST_PAIRS = 15
MOST_MISTAKES = 8
LEFT, RIGHT, TOP = 46, 14, 26
HEIGHT, HISTOGRAM, GAP = 190, 46, 30
"""Of a reliability diagram, and of the histogram of confidences below it."""


def calibration_figures(
    methods: Sequence[MethodPredictions], comparison: Comparison, styles: Mapping[str, int], name: str
) -> Markup:
    """The reliability diagram of each method; `name` begins every id in it."""
    figures = []
    for index, method in enumerate(methods, start=1):
        gap = 100 * (method.confidence - method.accuracy)
        verdict = f"{'over' if gap > 0 else 'under'}confident by {number(abs(gap), 1)} points"
        caption = (
            f"{method.label}: mean confidence {number(100 * method.confidence, 1)}%, accuracy "
            f"{number(100 * method.accuracy, 1)}% ({verdict}).{scale_note(comparison.config)}"
        )
        drawn = draw_reliability(method, styles[method.label], f"{name}-reliability{index}")
        figures.append(tag("figure", tag("div", drawn), tag("figcaption", caption)))
    note = (
        "Bars show the accuracy of the predictions of similar confidence: below the diagonal the network is "
        "overconfident, above it underconfident. The histogram shows how many predictions have that confidence. "
        f"{_pooled(comparison, methods)}"
    )
    return Markup(tag("p", note, class_="note") + tag("div", *figures, class_="pair"))


def _pooled(comparison: Comparison, methods: Sequence[MethodPredictions]) -> str:
    runs = max(len(method.runs) for method in methods)
    over = f"pooled over {counted(runs, 'run')}" if runs > 1 else "of one run"
    return f"Predictions on {comparison.config.evaluated_on} images after the last epoch, {over}."


def draw_reliability(method: MethodPredictions, style: int, name: str) -> Markup:
    """Accuracy by confidence, and a histogram of the confidences below it."""
    bins = method.bins()
    across = Axis(0, 100, LEFT, WIDTH - RIGHT)
    up = Axis(0, 100, TOP + HEIGHT, TOP)
    base = TOP + HEIGHT + GAP + HISTOGRAM
    parts = horizontal_grid(up, "accuracy, %", LEFT, WIDTH - RIGHT)
    parts += _bars(bins, across, up)
    parts.append(
        tag("line", class_="zero", x1=across(0), x2=across(100), y1=up(0), y2=up(100)),
    )
    shares = Axis(0, max(100 * one.share for one in bins), base, base - HISTOGRAM)
    parts.append(tag("text", "share of images, %", class_="unit", x=4, y=base - HISTOGRAM - 8))
    parts.append(tag("text", tick_text(round(shares.high)), class_="tick up", x=LEFT - 8, y=shares.end + 4))
    for one in bins:
        left, width = _place(one, across)
        hint = tag("title", f"{number(100 * one.share, 1)}% of the images")
        parts.append(
            tag(
                "rect",
                hint,
                class_="share",
                x=f"{left:.1f}",
                y=f"{shares(100 * one.share):.1f}",
                width=f"{width:.1f}",
                height=f"{max(0.6, base - shares(100 * one.share)):.1f}",
            )
        )
    parts.append(tag("line", class_="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base))
    for value in (0, 25, 50, 75, 100):
        parts.append(tag("text", str(value), class_="tick across", x=f"{across(value):.1f}", y=base + 17))
    parts.append(tag("text", "confidence, %", class_="unit end", x=WIDTH - RIGHT, y=base + 33))
    spoken = "; ".join(
        f"confidence {number(100 * one.confidence, 0)}%: accuracy {number(100 * one.accuracy, 0)}%" for one in bins
    )
    group = tag("g", *parts, class_=colour_class(style))
    title = f"Reliability diagram of {method.label}"
    return frame(name, title, f"{spoken}.", WIDTH, base + 40, [group], class_="chart reliability")


def _place(one: Bin, across: Axis) -> tuple[float, float]:
    """The left edge and the width of the bar of a bin."""
    index = min(BINS - 1, int(one.confidence * BINS))
    left, right = across(100 * index / BINS), across(100 * (index + 1) / BINS)
    return left + 0.75, right - left - 1.5


def _bars(bins: Sequence[Bin], across: Axis, up: Axis) -> list[str]:
    parts: list[str] = []
    for one in bins:
        left, width = _place(one, across)
        text = f"confidence {number(100 * one.confidence, 1)}%, accuracy {number(100 * one.accuracy, 1)}%"
        top = up(100 * one.accuracy)
        parts.append(
            tag(
                "rect",
                tag("title", text),
                class_="bar",
                x=f"{left:.1f}",
                y=f"{top:.1f}",
                width=f"{width:.1f}",
                height=f"{up(0) - top:.1f}",
            )
        )
        level = f"M{left:.1f},{top:.1f}h{width:.1f}"
        parts.append(tag("path", class_="mean", d=level))
    return parts


def confusion_figures(
    methods: Sequence[MethodPredictions], comparison: Comparison, styles: Mapping[str, int], name: str
) -> Markup:
    """A confusion matrix for each method, or a table of the most confused pairs of many classes."""
    if len(methods[0].classes) > MOST_IN_MATRIX:
        return _pairs_table(methods, comparison)
    matrices = {method.label: 100 * method.confusion() for method in methods}
    # One colour scale for all methods, so that they can be compared; the diagonal is not part of it.
    largest = max(float(_without_diagonal(matrix).max()) for matrix in matrices.values())
    figures = []
    for index, method in enumerate(methods, start=1):
        drawn = draw_matrix(method, matrices[method.label], largest, styles[method.label], f"{name}-confusion{index}")
        caption = f"{method.label}: how images of each class are classified.{scale_note(comparison.config)}"
        figures.append(tag("figure", tag("div", drawn), tag("figcaption", caption)))
    note = (
        "Rows are true classes, columns predicted ones; cells are percentages of the row, those below 0.5 are empty. "
        f"{_pooled(comparison, methods)}"
    )
    return Markup(tag("p", note, class_="note") + tag("div", *figures, class_="pair"))


def _without_diagonal(matrix: Tensor) -> Tensor:
    return matrix.clone().fill_diagonal_(0)


CHARACTER = 6.8
"""Upper estimate of the mean width of a character of a class's name."""
NUMBERED = 19.0
"""The smallest side of a cell with a number."""


def draw_matrix(method: MethodPredictions, matrix: Tensor, largest: float, style: int, name: str) -> Markup:
    """A confusion matrix in percent; off the diagonal, `largest` has the full colour."""
    size = len(method.classes)
    characters = min(11, max(map(len, method.classes)))
    left = 10 + characters * CHARACTER
    side = (WIDTH - left - 2) / size
    top = 10 + min(characters, 11) * CHARACTER
    parts: list[str] = []
    for index, full in enumerate(method.classes):
        short = full if len(full) <= characters else f"{full[: characters - 1]}…"
        hint = [] if short == full else [tag("title", full)]
        middle = (index + 0.5) * side
        parts.append(tag("text", *hint, short, class_="up", x=f"{left - 6:.1f}", y=f"{top + middle:.1f}"))
        x = f"{left + middle:.1f}"
        turned = f"rotate(-90 {x} {top - 6:.1f})"
        parts.append(tag("text", *hint, short, class_="turned", x=x, y=f"{top - 6:.1f}", transform=turned))
    for row, values in enumerate(matrix.tolist()):
        for column_, value in enumerate(values):
            parts += _cell(method, row, column_, value, largest, (left, top, side))
    spoken = "; ".join(f"{method.classes[row]} {number(float(matrix[row, row]), 0)}% correct" for row in range(size))
    title = f"Confusion matrix of {method.label}"
    group = tag("g", *parts, class_=colour_class(style))
    return frame(name, title, f"{spoken}.", WIDTH, round(top + side * size + 4), [group], class_="chart matrix")


def _cell(
    method: MethodPredictions, row: int, column_: int, value: float, largest: float, place: tuple[float, float, float]
) -> list[str]:
    left, top, side = place
    x, y = left + column_ * side, top + row * side
    text = f"{method.classes[row]} as {method.classes[column_]}: {number(value, 1)}%"
    share = value / largest if largest and row != column_ else 0.0
    parts: list[str] = [
        tag(
            "rect",
            tag("title", text),
            class_="own" if row == column_ else "cell",
            x=f"{x + 0.5:.1f}",
            y=f"{y + 0.5:.1f}",
            width=f"{side - 1:.1f}",
            height=f"{side - 1:.1f}",
            fill_opacity=None if row == column_ else f"{0.75 * share:.2f}",
        )
    ]
    if side >= NUMBERED and value >= 0.5:
        parts.append(tag("text", number(value, 0), class_="count", x=f"{x + side / 2:.1f}", y=f"{y + side / 2:.1f}"))
    return parts


def _pairs_table(methods: Sequence[MethodPredictions], comparison: Comparison) -> Markup:
    pairs = most_confused(list(methods), MOST_PAIRS)
    shares = [100 * method.confusion() for method in methods]
    names = methods[0].classes
    head = [column("Class"), column("taken for"), *(column(method.label, numeric=True) for method in methods)]
    rows = [
        [
            tag("th", names[pair.label], scope="row"),
            tag("td", names[pair.predicted]),
            *(number_cell(number(float(share[pair.label, pair.predicted]), 1)) for share in shares),
        ]
        for pair in pairs
    ]
    text = (
        f"The {len(pairs)} most confused pairs of {len(names)} classes: percentage of the images of the class. "
        f"{_pooled(comparison, methods)}{scale_note(comparison.config)}"
    )
    return boxed_table(f"Most confused pairs on {comparison.title}", text, head, rows)


def mistake_figures(methods: Sequence[MethodPredictions], comparison: Comparison) -> Markup | None:
    """The most confident mistakes of each method as pictures; None if no run has left any."""
    figures = []
    for method in methods:
        mistakes = method.mistakes(MOST_MISTAKES)
        if mistakes:
            tiles = tag("ul", *(_tile(mistake, method.classes) for mistake in mistakes), class_="tiles")
            caption = f"{method.label}: most confident mistakes.{scale_note(comparison.config)}"
            figures.append(tag("figure", tiles, tag("figcaption", caption)))
    if not figures:
        return None
    note = (
        "Each image with its true class, the predicted class, the confidence of the prediction, and how many runs "
        f"classify the image wrongly. {_pooled(comparison, methods)}"
    )
    return Markup(tag("p", note, class_="note") + "".join(figures))


def _tile(mistake: Mistake, names: Sequence[str]) -> Markup:
    from PIL import Image

    pixels = mistake.picture.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    label, predicted = names[mistake.label], names[mistake.predicted]
    image = tag(
        "img",
        src=data_uri(png_bytes(picture)),
        alt=f"{label}, predicted as {predicted}",
        width=picture.width,
        height=picture.height,
        class_="pixels",
    )
    shared = f"{mistake.wrong} of {mistake.runs}"
    words = [
        tag("span", label),
        tag("span", f"→\N{NO-BREAK SPACE}{predicted}", class_="predicted"),
        tag("span", f"{_confidence(mistake.confidence)} · ", tag("span", shared, class_="word"), class_="runs"),
    ]
    return tag("li", image, *words)


def _confidence(share: float) -> str:
    """A confidence in percent that does not round to 100.

    Example:
        >>> _confidence(0.9876), _confidence(0.99999)
        ('98.8%', '>99.9%')
    """
    return ">99.9%" if share > 0.9995 else f"{number(100 * share, 1)}%"
