"""The commands ``isda directions``, ``visualize``, ``explore``, ``map`` and ``tightness``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import tyro

from isda.cli.runtime_options import JsonFile


def directions(
    run: tyro.conf.Positional[Path],
    *,
    out: Path = Path("directions.html"),
    classes: tuple[str, ...] = (),
    directions: int = 5,
    images: int = 6,
    judge: Path | None = None,
    most: int | None = None,
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Show the directions in which the features of each class vary, by training images, in one HTML page.

    Args:
        run: a run folder of a classifier.
        out: the page, one file that can be opened and passed on as it is.
        classes: names of the classes to show; all by default, of more than 20 the first 20.
        directions: of each class, those of the largest variance.
        images: at each end of a direction, and nearest to each moved feature.
        judge: the run folder of another network: does it tell the two ends of each direction apart?
        most: look at this many training images at most, equally many of each class; at all by default.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write everything but the images to this file as JSON; "-" writes JSON to the standard output and no
            table.
    """
    import shlex

    from isda._utils.text import escape_control_characters
    from isda.analysis.directions import make_atlas
    from isda.analysis.directions.page import atlas_table, notes, write_atlas
    from isda.analysis.training_features import observe
    from isda.cli.output import show, table_console
    from isda.engine.processes import join_processes

    for name, value, largest in (("directions", directions, 100), ("images", images, 60)):
        if not 1 <= value <= largest:
            raise ValueError(f"{name} must be from 1 to {largest}, got {value}")
    with join_processes(device) as processes:
        observed = observe(run, data_root, processes.device, most=most)
        atlas = make_atlas(
            observed, classes=classes, directions=directions, images=images, judge=judge, device=processes.device
        )
    words = ["isda", "directions", run.as_posix(), "--directions", str(directions), "--images", str(images)]
    words += ["--classes", *classes] if classes else []
    words += ["--most", str(most)] if most is not None else []
    words += ["--judge", judge.as_posix()] if judge is not None else []
    write_atlas(atlas, out, shlex.join(words))

    def tables() -> None:
        table_console().print(atlas_table(atlas))
        print(escape_control_characters("\n".join([*notes(atlas), f"The page is {out}"])))

    show(atlas.as_json(), json, tables)


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
    from isda._utils.text import escape_control_characters
    from isda.analysis.inversion.page import PAGE, InversionOptions, draw_inversion
    from isda.cli.output import show
    from isda.engine.processes import join_processes

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
    with join_processes(device) as processes, _inversion_progress(iterations, sys.stderr.isatty()) as progress:
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
        print(escape_control_characters(f"{out / PAGE}: {told}"))

    show(record, json, tables)


@contextmanager
def _inversion_progress(
    iterations: int, terminal: bool
) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """A bar for each step, on a terminal; images beyond the first batch begin it anew."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not terminal) as bars:
        tasks = [bars.add_task(name, total=iterations) for name in ("step I ", "step II")]
        first, second = ((lambda over, task=task: bars.update(task, completed=over)) for task in tasks)
        yield first, second


def explore(
    run: tyro.conf.Positional[Path],
    *,
    directions: int = 5,
    images: int = 8,
    most: int | None = None,
    generator: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    open: bool = True,
    data_root: Path | None = None,
    device: str = "auto",
) -> None:
    """Open a page on this machine to move along the directions of classes and see what lies there.

    Args:
        run: a run folder of a classifier.
        directions: of each class, those of the largest variance.
        images: nearest to where a feature is moved.
        most: look at this many training images at most, equally many of each class; by default at 2,000, or 10 of each
            class.
        generator: the run folder of a generator (`isda generate train`) of the same data: the page then also makes
            images for moved features.
        host: the address to listen at. By default only this machine can reach the page.
        port: to listen at; any that is free by default.
        open: open the page in a browser.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
    """
    import sys

    from isda._utils.text import escape_control_characters
    from isda.analysis.explorer import Scene, make_application
    from isda.analysis.explorer.application import FeatureVisualizer
    from isda.analysis.explorer.server import is_loopback, listen, serve
    from isda.analysis.training_features import observe
    from isda.engine.processes import join_processes
    from isda.tasks.classification.trained import load_classifier

    for name, value, largest in (("directions", directions, 20), ("images", images, 60)):
        if not 1 <= value <= largest:
            raise ValueError(f"{name} must be from 1 to {largest}, got {value}")
    with listen(host, port) as place, join_processes(device) as processes:
        least = 10 * len(load_classifier(run).config.classes)
        observed = observe(run, data_root, processes.device, most=max(2000, least) if most is None else most)
        if not is_loopback(host):
            warned = f"whoever can reach {host} can see the images of this run; nobody is asked for a password"
            print(escape_control_characters(f"isda: warning: {warned}"), file=sys.stderr)
        imagining = None if generator is None else FeatureVisualizer(observed, generator, processes.device)
        application = make_application(Scene(observed, directions, images), host, imagining)

        def told(address: str) -> None:
            print(escape_control_characters(f"{run} at {address}, until Ctrl-C"), flush=True)

        serve(application, place, host, told, show=open)


def map_features(  # the command has this name
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    by: Literal["tsne", "umap"] = "tsne",
    images: int = 2000,
    perplexity: float = 30.0,
    neighbours: int = 10,
    seed: int = 0,
    out: Path = Path("map.html"),
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Draw maps of the features of runs side by side, with figures of how well they keep the classes apart.

    ``isda map runs/plain runs/isda`` (docs/maps.md)

    Args:
        runs: folders of finished runs of classifiers on one data set.
        by: tsne, or umap (pip install 'isda-torch[umap]').
        images: that are looked at, of those that the runs were judged by; the same for all runs.
        perplexity: of t-SNE, about the number of neighbours that count; for UMAP that number.
        neighbours: k of the accuracy of the nearest neighbours.
        seed: of the map, and of which images.
        out: the page, one file that can be opened and passed on as it is.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write the figures to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    from dataclasses import asdict

    from rich.text import Text

    from isda._utils.text import escape_control_characters
    from isda.analysis.maps import MAP_COLUMNS, MapOptions, draw_maps, map_cells
    from isda.cli.output import plain_table, show, table_console, track_progress
    from isda.engine.processes import join_processes

    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be from 0 to 2^32 - 1, got {seed}")
    options = MapOptions(by=by, images=images, perplexity=perplexity, neighbours=neighbours, seed=seed)
    with join_processes(device) as processes:
        title, views = draw_maps(
            runs, out, options, data_root, processes.device, lambda seen: track_progress(seen, "maps", len(seen))
        )

    def tables() -> None:
        console = table_console()
        console.print(plain_table(title, MAP_COLUMNS, [map_cells(view) for view in views]))
        console.print(Text(escape_control_characters(f"The page is {out}")), soft_wrap=True)

    record = [
        {
            "run": str(view.evaluated.folder),
            "title": view.title,
            "images": len(view.evaluated.labels),
            "error": view.error,
        }
        | asdict(view.separation)
        for view in views
    ]
    show(record, json, tables)


MAX_DRAWS = 1_000_000


def tightness(
    run: tyro.conf.Positional[Path],
    *,
    strengths: tuple[float, ...] = (),
    lambda_0: float | None = None,
    images: int = 500,
    draws: int = 1000,
    seed: int = 0,
    out: Path = Path("tightness.html"),
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Measure how far the published and the tilted bound lie above the expectation that they bound.

    ``isda train --checkpoint-steps 100 --keep 100 --out runs/one; isda tightness runs/one`` (docs/tightness.md)

    Args:
        run: a run folder of a classifier, finished or not; every checkpoint in it is a point of the curve.
        strengths: also measure the finished network at these strengths, with the covariances of its final features.
        lambda_0: the strength at the end of training, instead of the run's own (0.5 for runs without).
        images: of the training set that are looked at.
        draws: per image and point, at most 1000000; each comes with its opposite.
        seed: of the draws, and of which images.
        out: the page, one file that can be opened and passed on as it is.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write the figures to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    from rich.text import Text

    from isda._utils.text import escape_control_characters
    from isda.analysis.tightness import (
        BOUNDS_COLUMNS,
        TightnessOptions,
        bounds_cells,
        bounds_record,
        draw_tightness,
    )
    from isda.cli.output import plain_table, show, table_console, track_progress
    from isda.engine.processes import join_processes
    from isda.engine.run_folder import RunFolder

    if draws > MAX_DRAWS:
        raise ValueError(f"draws must be at most {MAX_DRAWS}, got {draws}")
    options = TightnessOptions(strengths=strengths, lambda_0=lambda_0, images=images, draws=draws, seed=seed)
    with join_processes(device) as processes:
        title, moments, finished = draw_tightness(
            run,
            out,
            options,
            data_root,
            processes.device,
            lambda points: track_progress(points, "checkpoints", len(RunFolder(run).checkpoints.steps)),
        )

    def tables() -> None:
        console = table_console()
        rows = [[f"{moment.epoch:.1f}", *bounds_cells(moment.bounds)] for moment in moments]
        console.print(plain_table(title, ["epoch", *BOUNDS_COLUMNS], rows))
        if finished:
            console.print(
                plain_table("The finished network", list(BOUNDS_COLUMNS), [bounds_cells(bounds) for bounds in finished])
            )
        console.print(Text(escape_control_characters(f"The page is {out}")), soft_wrap=True)

    over = [{"step": one.step, "epoch": one.epoch, "own": one.own} | bounds_record(one.bounds) for one in moments]
    show({"run": str(run), "training": over, "finished": [bounds_record(one) for one in finished]}, json, tables)
