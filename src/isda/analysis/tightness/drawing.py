"""The bounds over a run, from its folder to the page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from isda.analysis.observing import observe
from isda.analysis.tightness.bounds import Bounds
from isda.analysis.tightness.history import Moment, bounds_at, bounds_over_training
from isda.analysis.tightness.page import write_tightness
from isda.engine.folder.formats import read_config
from isda.engine.folder.run_folder import RunFolder

__all__ = ["TightnessOptions", "draw_tightness"]


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
    watched: Callable[[Iterable[Moment]], Iterable[Moment]] = iter,
) -> tuple[str, list[Moment], list[Bounds]]:
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
