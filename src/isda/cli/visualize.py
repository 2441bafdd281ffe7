"""The command ``isda visualize``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tyro

from isda.cli.options import JsonFile

__all__ = ["visualize"]


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
    from isda.analysis.inversion.drawing import PAGE, InversionOptions, draw_inversion
    from isda.cli.output import show
    from isda.engine.processes import join_processes
    from isda.plain_text import harmless

    options = InversionOptions(
        images=images,
        augmented=augmented,
        classes=classes,
        strength=strength,
        iterations=iterations,
        lr=lr,
        pixel_weight=pixel_weight,
        tolerance=tolerance,
        seed=seed,
    )
    with join_processes(device) as processes, _bars(iterations, sys.stderr.isatty()) as progress:
        record = draw_inversion(run, generator, out, options, data_root, processes.device, progress)

    def tables() -> None:
        one, two = record["step_1"], record["step_2"]
        print("              feature error   at the start   lowered by   seen as its class")
        for name, found in (("step I", one), ("step II", two)):
            print(
                f"{name:>12} {found['feature_error']:14.4g} {found['feature_error_at_start']:14.4g} "
                f"{100 * found['lowered_by']:11.1f}% {100 * found['same_class']:17.1f}%"
            )
        told = f"{images} images, {augmented} augmented of each, strength {record['strength']:g}"
        print(harmless(f"{out / PAGE}: {told}"))

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
