"""Images of a run, reconstructed and augmented, from the folders of a run and a generator to a folder of pictures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from isda.analysis.inversion.descent import Descent
from isda.analysis.inversion.fitting import fitting_pair
from isda.analysis.inversion.generating import generator_of_run
from isda.analysis.inversion.inverting import PIXEL_WEIGHT, Inverter, check_pixel_weight
from isda.analysis.inversion.moving import check_strength, strength_of
from isda.analysis.inversion.page import pictures, render_page
from isda.analysis.inversion.study import choose_rows, study
from isda.analysis.observing import observe
from isda.files import replacing, write_text

__all__ = ["PAGE", "InversionOptions", "draw_inversion"]

PAGE = "visualize.html"
MOST_AUGMENTED = 20
"""Of one image: more do not fit into a picture that can be looked at."""
MOST_LOOKED_AT = 10_000
"""Training images that covariances are estimated from; that takes a network minutes on a CPU where it is large."""


@dataclass(frozen=True, kw_only=True)
class InversionOptions:
    """How to invert; as the options of `isda visualize`."""

    images: int = 10
    augmented: int = 4
    classes: tuple[str, ...] = ()
    strength: float | None = None
    iterations: int = 10_000
    lr: tuple[float, float] | None = None
    pixel_weight: float = PIXEL_WEIGHT
    tolerance: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2^63 - 1, got {self.seed}")
        if not 1 <= self.augmented <= MOST_AUGMENTED:
            raise ValueError(f"augmented must be from 1 to {MOST_AUGMENTED}, got {self.augmented}")
        if self.strength is not None:
            check_strength(self.strength)
        check_pixel_weight(self.pixel_weight)
        self.steps()

    def steps(self) -> tuple[Descent, Descent]:
        """How each of the two steps descends."""
        step = Descent(iterations=self.iterations, tolerance=self.tolerance)
        return (step, step) if self.lr is None else (replace(step, lr=self.lr[0]), replace(step, lr=self.lr[1]))


def draw_inversion(
    run: Path,
    generator: Path,
    out: Path,
    options: InversionOptions,
    data_root: Path | None,
    device: torch.device,
    progress: tuple[Callable[[int], None], Callable[[int], None]] | None = None,
) -> dict[str, Any]:
    """Invert, and write augmented.png, nearest.png and the page; returns all figures as plain values.

    Args:
        run: the folder of a classifier's run.
        generator: that of a generator of the same data.
        out: the folder for what is written.
        options: how.
        data_root: the folder of data sets.
        device: where.
        progress: told the iterations that are over, of each of the two steps.
    """
    trained = fitting_pair(run, generator, options.classes)
    observed = observe(run, data_root, device, most=max(MOST_LOOKED_AT, len(trained.classes)))
    rows = choose_rows(observed, options.images, options.classes, options.seed)
    first, second = options.steps()
    inverter = Inverter(
        observed,
        generator_of_run(trained, device),
        pixel_weight=options.pixel_weight,
        first=first,
        second=second,
        seed=options.seed,
    )
    made = study(inverter, rows, options.augmented, strength=options.strength, progress=progress)
    used = strength_of(observed) if options.strength is None else options.strength
    asked = {"generator": str(generator)} | asdict(options) | {"strength": used}
    asked |= {"classes": list(options.classes) or None, "lr": None if options.lr is None else list(options.lr)}
    record: dict[str, Any] = {"run": str(run)} | asked | made.record()
    drawn = pictures(made)
    for name, png in drawn.items():
        with replacing(out / f"{name}.png") as unfinished:
            unfinished.write_bytes(png)
    title = f"Augmented images of {observed.data.name}"
    write_text(out / PAGE, render_page(drawn, record, title, _command(run, asked)))
    return record


def _command(run: Path, asked: Mapping[str, object]) -> str:
    """The command line that makes the page again."""
    words = ["isda", "visualize", str(run)]
    for name, value in asked.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)
