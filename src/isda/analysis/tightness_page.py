"""The page of `isda tightness`: curves of the expectation and the bounds, gaps, and a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from isda.analysis.pages import COLOURS, command_line, new_figure, svg_figure, write_page
from isda.analysis.tightness import Bounds, CheckpointBounds, bounds_at, bounds_over_training
from isda.analysis.training_features import observe
from isda.engine.config import read_config
from isda.engine.run_folder import RunFolder
from isda.report.markup import Markup, boxed_table, column, number_cell

WIDE = 10
"""Ratio of the largest to the smallest value from which the axis is logarithmic."""
BOUNDS_COLUMNS = (
    "strength",
    "expectation",
    "published bound",
    "tilted bound",
    "gap, published",
    "gap, tilted",
    "ratio of gaps",
)


def bounds_record(bounds: Bounds) -> dict[str, Any]:
    """The figures as plain values."""
    expected, published, tilted = (
        float(values.mean()) for values in (bounds.expected, bounds.published, bounds.tilted)
    )
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


def bounds_cells(bounds: Bounds) -> list[str]:
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
    path: Path,
    title: str,
    checkpoints: Sequence[CheckpointBounds],
    finished: Sequence[Bounds],
    draws: int,
    command: str,
) -> None:
    """Write the page of the bounds over training, and of those of the finished network at given strengths."""
    parts: list[str] = []
    over_training = [checkpoint.bounds for checkpoint in checkpoints]
    if checkpoints:
        epochs = [checkpoint.epoch for checkpoint in checkpoints]
        parts += _section(over_training, epochs, "epoch", "over training", epochs)
    if finished:
        strengths = [bounds.strength for bounds in finished]
        parts += _section(finished, strengths, "strength λ", "of the finished network", None)
    count = len((finished or over_training)[0].expected)
    own = any(checkpoint.own for checkpoint in checkpoints)
    lede = (
        f"The expected cross-entropy over augmented features by {draws:,} draws for each of {count:,} training images, "
        "and two upper bounds of it, means over images in nats. "
        + ("Over training, covariances and strength are those of the run at each checkpoint." if own else "")
    )
    write_page(path, "isda tightness", title, lede, parts, command)


def _section(
    bounds: Sequence[Bounds], across: Sequence[float], unit: str, when: str, epochs: Sequence[float] | None
) -> list[Markup]:
    records = [bounds_record(point) for point in bounds]
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
    picture = svg_figure(figure, f"The expectation and its bounds {when}; right: the gaps between them.")
    first = [] if epochs is None else [column("epoch", numeric=True)]
    head = [*first, *(column(name, numeric=True) for name in BOUNDS_COLUMNS)]
    rows = [
        [*([] if epochs is None else [number_cell(f"{epochs[row]:.1f}")]), *map(number_cell, bounds_cells(point))]
        for row, point in enumerate(bounds)
    ]
    caption = "Ratio of gaps: mean gap of the tilted bound over that of the published one, ± its standard error."
    return [picture, boxed_table(f"Bounds {when}", caption, head, rows)]


@dataclass(frozen=True, kw_only=True)
class TightnessOptions:
    """Options of `isda tightness`."""

    strengths: tuple[float, ...] = ()
    lambda_0: float | None = None
    images: int = 500
    draws: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.images < 2:
            raise ValueError(f"images must be at least 2, got {self.images}")


def draw_tightness(
    run: Path,
    out: Path,
    options: TightnessOptions,
    data_root: Path | None,
    device: torch.device,
    watched: Callable[[Iterable[CheckpointBounds]], Iterable[CheckpointBounds]] = iter,
) -> tuple[str, list[CheckpointBounds], list[Bounds]]:
    """Measure at every checkpoint and write the page; return its title and the bounds over training and at the end.

    ``watched`` wraps the iteration over checkpoints, to show progress.
    """
    points = bounds_over_training(
        run, data_root, device, most=options.images, lambda_0=options.lambda_0, draws=options.draws, seed=options.seed
    )
    checkpoints = list(watched(points))
    finished: list[Bounds] = []
    if options.strengths:
        observed = observe(run, data_root, device, most=options.images)
        finished = bounds_at(observed, options.strengths, options.draws, options.seed)
    stored = read_config(RunFolder(run).config_file)
    title = f"How tight the bounds are: {stored['network']} on {stored['data']}, {stored['method']}"
    command = command_line("tightness", run, **asdict(options), out=out)
    write_tightness(out, title, checkpoints, finished, options.draws, command)
    return title, checkpoints, finished
