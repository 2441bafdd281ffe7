"""What `isda tightness` shows: curves of the expectation and its bounds, their gaps, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isda.analysis.figures import COLOURS, drawn, new_figure, write_page
from isda.analysis.tightness.bounds import Bounds
from isda.analysis.tightness.history import Moment
from isda.report.cells import boxed_table, column, number_cell
from isda.report.markup import Markup

__all__ = ["HEADS", "bounds_record", "cells", "write_tightness"]

WIDE = 10
"""Values whose largest is this many times the smallest are drawn by their logarithms."""
HEADS = ("strength", "expectation", "published bound", "tilted bound", "gap, published", "gap, tilted", "ratio of gaps")


def bounds_record(bounds: Bounds) -> dict[str, Any]:
    """The figures as plain values."""
    expected, published, tilted = (float(one.mean()) for one in (bounds.expected, bounds.published, bounds.tilted))
    ratio = bounds.ratio
    return {
        "strength": bounds.strength,
        "expected": expected,
        "expected_standard_error": bounds.standard_error,
        "published": published,
        "tilted": tilted,
        "gap_published": published - expected,
        "gap_tilted": tilted - expected,
        "ratio": ratio.value if ratio else None,
        "ratio_standard_error": ratio.standard_error if ratio else None,
        "samples": len(bounds.expected),
    }


def cells(bounds: Bounds) -> list[str]:
    """The figures as a row of text."""
    record = bounds_record(bounds)
    ratio = "" if record["ratio"] is None else f"{record['ratio']:.3f} ± {record['ratio_standard_error']:.3f}"
    return [
        f"{bounds.strength:.3g}",
        f"{record['expected']:.4f} ± {record['expected_standard_error']:.4f}",
        *(f"{record[key]:.4f}" for key in ("published", "tilted", "gap_published", "gap_tilted")),
        ratio,
    ]


def write_tightness(
    path: Path, title: str, moments: Sequence[Moment], finished: Sequence[Bounds], draws: int, command: str
) -> None:
    """Write the page.

    Args:
        path: of the page.
        title: which run it is.
        moments: over training.
        finished: the finished network at strengths of the reader's choice.
        draws: per image.
        command: that made it.
    """
    parts: list[str] = []
    if moments:
        across = [moment.epoch for moment in moments]
        parts += _shown([moment.bounds for moment in moments], across, "epoch", "over training", across)
    if finished:
        strengths = [bounds.strength for bounds in finished]
        parts += _shown(finished, strengths, "strength λ", "of the finished network", None)
    count = len((finished or [moment.bounds for moment in moments])[0].expected)
    own = any(moment.own for moment in moments)
    told = (
        f"The expected cross-entropy over augmented features by {draws:,} draws for each of {count:,} training images, "
        "and two upper bounds of it, means over images in nats. "
        + ("Over training the covariances and the strength are those that the run had by then." if own else "")
    )
    write_page(path, "isda tightness", title, told, parts, command)


def _shown(
    bounds: Sequence[Bounds], across: Sequence[float], unit: str, when: str, epochs: Sequence[float] | None
) -> list[Markup]:
    records = [bounds_record(one) for one in bounds]
    figure, (values, gaps) = new_figure(2)
    lines = (("expected", "expectation", "-", "o"), ("published", "published bound", "--", "s"))
    for number, (key, label, style, mark) in enumerate((*lines, ("tilted", "tilted bound", ":", "^"))):
        drawing: dict[str, Any] = {"color": COLOURS[number], "linestyle": style, "marker": mark, "markersize": 4}
        values.plot(across, [record[key] for record in records], label=label, **drawing)
        if number:
            gaps.plot(across, [record[f"gap_{key}"] for record in records], label=label, **drawing)
    for axes, name in ((values, "loss, nats"), (gaps, "bound − expectation, nats")):
        axes.set(xlabel=unit, ylabel=name)
        axes.legend(frameon=False, fontsize=8)
    for axes, keys in ((values, ("expected",)), (gaps, ("gap_tilted", "gap_published"))):
        shown = [record[key] for record in records for key in keys]
        if 0 < WIDE * min(shown) < max(shown):
            axes.set_yscale("log")
    picture = drawn(figure, f"The expectation and its bounds {when}; right: what the bounds add to it.")
    first = [] if epochs is None else [column("epoch", numeric=True)]
    head = [*first, *(column(name, numeric=True) for name in HEADS)]
    rows = [
        [*([] if epochs is None else [number_cell(f"{epochs[row]:.1f}")]), *map(number_cell, cells(one))]
        for row, one in enumerate(bounds)
    ]
    told = "Ratio of gaps: mean of the tilted bound's over mean of the published one's, ± its standard error."
    return [picture, boxed_table(f"Bounds {when}", told, head, rows)]
