"""The command ``isda visualize``."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tyro

from isda.cli.options import JsonFile

__all__ = ["visualize"]

MOST_AUGMENTED = 20
"""Of one image: more do not fit into a picture that can be looked at."""
MOST_LOOKED_AT = 10_000
"""Training images that covariances are estimated from; that takes a network minutes on a CPU where it is large."""


def visualize(
    run: tyro.conf.Positional[Path],
    *,
    generator: Path,
    images: int = 10,
    augmented: int = 4,
    classes: tuple[str, ...] = (),
    strength: float | None = None,
    iterations: int = 10_000,
    lr: tuple[float, float] | None = None,
    pixel_weight: float = 5e-3,
    tolerance: float = 0.01,
    seed: int = 0,
    out: Path = Path("visualize"),
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Show what ISDA's moved features look like: the paper's reverse mapping through a trained generator.

    ``isda visualize runs/digits --generator runs/gan``

    Writes a folder: augmented.png (each image, its reconstruction, augmented ones, a random one of the class),
    nearest.png (the training images nearest to augmented ones), and visualize.html with both and the errors.

    Args:
        run: the run folder of a classifier.
        generator: the run folder of a generator (`isda generate train`) of the same data.
        images: training images to show, taken from the classes in turn.
        augmented: moved features of each image.
        classes: names of classes; all of them if left out.
        strength: lambda of the draws from N(a, lambda Sigma); lambda_0 of the run if left out, 0.5 where it has none.
        iterations: of each of the two steps, at most.
        lr: learning rates of the two steps; the published ones are 10 1. If left out, 1 over each image's feature error
            at the start of the step.
        pixel_weight: eta, the weight of pixels in step I.
        tolerance: an image is done when its feature error has fallen to this share, or stalls; 0 stops nothing early.
        seed: of images, starts and draws.
        out: the folder.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write all figures to this file as JSON; "-" writes JSON to the standard output and nothing else.
    """
    from dataclasses import replace

    from isda.analysis.inversion import Descent, Inverter, choose_rows, generator_of_run, study
    from isda.analysis.inversion.fitting import fitting_pair
    from isda.analysis.inversion.inverting import check_pixel_weight
    from isda.analysis.inversion.moving import check_strength, strength_of
    from isda.analysis.inversion.page import pictures, render_page
    from isda.analysis.observing import observe
    from isda.cli.output import show
    from isda.engine.processes import join_processes
    from isda.files import replacing, write_text
    from isda.plain_text import harmless

    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1, got {seed}")
    if not 1 <= augmented <= MOST_AUGMENTED:
        raise ValueError(f"augmented must be from 1 to {MOST_AUGMENTED}, got {augmented}")
    if strength is not None:
        check_strength(strength)
    step = Descent(iterations=iterations, tolerance=tolerance)
    first, second = (step, step) if lr is None else (replace(step, lr=lr[0]), replace(step, lr=lr[1]))
    check_pixel_weight(pixel_weight)
    trained = fitting_pair(run, generator, classes)
    with join_processes(device) as processes:
        observed = observe(run, data_root, processes.device, most=max(MOST_LOOKED_AT, len(trained.classes)))
        rows = choose_rows(observed, images, classes, seed)
        inverter = Inverter(
            observed,
            generator_of_run(trained, processes.device),
            pixel_weight=pixel_weight,
            first=first,
            second=second,
            seed=seed,
        )
        with _bars(iterations, sys.stderr.isatty()) as progress:
            made = study(inverter, rows, augmented, strength=strength, progress=progress)
    used = strength_of(observed) if strength is None else strength
    record: dict[str, Any] = {
        "run": str(run),
        "generator": str(generator),
        "strength": used,
        "seed": seed,
        **made.record(),
    }
    drawn = pictures(made)
    for name, png in drawn.items():
        with replacing(out / f"{name}.png") as unfinished:
            unfinished.write_bytes(png)
    command = shlex.join(["isda", "visualize", str(run), "--generator", str(generator), "--seed", str(seed)])
    title = f"Augmented images of {observed.data.name}"
    write_text(out / "visualize.html", render_page(drawn, record, title, command))

    def tables() -> None:
        one, two = record["step_1"], record["step_2"]
        print("              feature error   at the start   lowered by   seen as its class")
        for name, found in (("step I", one), ("step II", two)):
            print(
                f"{name:>12} {found['feature_error']:14.4g} {found['feature_error_at_start']:14.4g} "
                f"{100 * found['lowered_by']:11.1f}% {100 * found['same_class']:17.1f}%"
            )
        page = out / "visualize.html"
        print(harmless(f"{page}: {len(rows)} images, {augmented} augmented of each, strength {used:g}"))

    show(record, json, tables)


@contextmanager
def _bars(iterations: int, terminal: bool) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A bar for each step, on a terminal; images beyond the first batch begin it anew."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not terminal) as bars:
        tasks = [bars.add_task(name, total=iterations) for name in ("step I ", "step II")]
        first, second = ((lambda over, task=task: bars.update(task, completed=over)) for task in tasks)
        yield first, second
