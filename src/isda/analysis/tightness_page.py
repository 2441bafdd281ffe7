"""The page of `isda tightness`: curves of the expectation and the bounds, gaps, and a table."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isda.analysis.pages import COLOURS, drawn, new_figure, write_page
from isda.analysis.tightness import Bounds, CheckpointBounds, bounds_at, bounds_over_training
from isda.analysis.training_features import observe
from isda.engine.config import read_config
from isda.engine.run_folder import RunFolder
from isda.report.markup import Markup, boxed_table, column, number_cell

WIDE = 10
"""Values whose largest is this many times the smallest are drawn by their logarithms."""
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
    path: Path, title: str, moments: Sequence[CheckpointBounds], finished: Sequence[Bounds], draws: int, command: str
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
    head = [*first, *(column(name, numeric=True) for name in BOUNDS_COLUMNS)]
    rows = [
        [*([] if epochs is None else [number_cell(f"{epochs[row]:.1f}")]), *map(number_cell, bounds_cells(one))]
        for row, one in enumerate(bounds)
    ]
    told = "Ratio of gaps: mean of the tilted bound's over mean of the published one's, ± its standard error."
    return [picture, boxed_table(f"Bounds {when}", told, head, rows)]


@dataclass(frozen=True, kw_only=True)
class TightnessOptions:
    """How to measure; as the options of `isda tightness`."""

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
    """Measure at every checkpoint and write the page; returns its title, the moments, and the finished network's.

    Args:
        run: the folder of a classifier's run.
        out: the page.
        options: how.
        data_root: the folder of data sets.
        device: where.
        watched: goes through the checkpoints while they are measured, to show how far it is.
    """
    points = bounds_over_training(
        run,
        data_root,
        device,
        most=options.images,
        lambda_0=options.lambda_0,
        draws=options.draws,
        seed=options.seed,
    )
    moments = list(watched(points))
    seen = observe(run, data_root, device, most=options.images) if options.strengths else None
    finished = bounds_at(seen, options.strengths, options.draws, options.seed) if seen is not None else []
    stored = read_config(RunFolder(run).config_file)
    title = f"How tight the bounds are: {stored['network']} on {stored['data']}, {stored['method']}"
    words = ["isda", "tightness", run.as_posix(), "--images", str(options.images), "--draws", str(options.draws)]
    words += ["--seed", str(options.seed)]
    words += ["--lambda-0", f"{options.lambda_0:g}"] if options.lambda_0 is not None else []
    words += ["--strengths", *(f"{strength:g}" for strength in options.strengths)] if options.strengths else []
    write_tightness(out, title, moments, finished, options.draws, shlex.join([*words, "--out", out.as_posix()]))
    return title, moments, finished
