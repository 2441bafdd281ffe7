"""The commands ``isda directions``, ``visualize``, ``map`` and ``tightness``."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tyro

from isda.lab.choices import check_range
from isda.lab.cli.runtime_options import MeasureOptions


def directions(
    run: tyro.conf.Positional[Path],
    common: tyro.conf.OmitArgPrefixes[MeasureOptions],
    *,
    out: Path = Path("directions.html"),
    classes: tuple[str, ...] = (),
    directions: int = 5,
    images: int = 6,
    judge: Path | None = None,
    most: int | None = None,
    overwrite: bool = False,
) -> None:
    """Show in which directions the features of each class vary: one HTML page with training images.

    Args:
        run: a run folder of a classifier.
        common: data folder, device and JSON.
        out: the page, a self-contained file.
        classes: names of the classes to show; all by default, or the first 20 of more than 20.
        directions: of each class, those of the largest variance.
        images: at each end of a direction, and nearest to each moved feature.
        judge: the run folder of another network, on whose features the two ends of each direction are compared.
        most: use this many training images at most, equally many of each class; all by default.
        overwrite: replace the page even if it is a file that this command has not written.
    """
    import shlex

    from isda.lab.analysis.directions import make_atlas
    from isda.lab.analysis.directions.page import atlas_table, notes, write_atlas
    from isda.lab.analysis.training_features import observe
    from isda.lab.cli.output import check_replaceable, print_escaped, show, table_console
    from isda.lab.engine.processes import join_processes

    check_replaceable(out, "isda directions", overwrite=overwrite)
    check_range("directions", directions, 1, 100)
    check_range("images", images, 1, 60)
    with join_processes(common.device) as processes:
        observed = observe(run, common.data_root, processes.device, most=most)
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
        print_escaped("\n".join([*notes(atlas), f"The page is {out}"]))

    show(atlas.as_json(), common.json, tables)


def visualize(
    run: tyro.conf.Positional[Path],
    common: tyro.conf.OmitArgPrefixes[MeasureOptions],
    *,
    generator: str,
    images: int = 10,
    augmented: int = 4,
    classes: tuple[str, ...] = (),
    strength: float | None = None,
    iterations: int = 10_000,
    lr: tuple[float, float] | None = None,
    pixel_weight: float = 5e-3,
    tolerance: float = 0.01,
    truncation: float = 1.0,
    seed: int = 0,
    out: Path = Path("visualize"),
) -> None:
    """Show images of ISDA's augmented features: the paper's reverse mapping by a trained generator.

    ``isda visualize runs/digits --generator runs/gan``

    Writes a folder: augmented.png (each image, its reconstruction, augmented ones, a random one of the class),
    nearest.png (the training images nearest to augmented ones), and visualize.html with both and the errors.

    Args:
        run: the run folder of a classifier.
        common: data folder, device and JSON.
        generator: the run folder of a generator (`isda generate train`) of the same data, or a BigGAN: a class of
            yours and its weights, package.module.Class:FILE, or pytorch_pretrained_biggan.BigGAN:FOLDER.
        images: training images to show, taken from the classes in turn.
        augmented: augmented features of each image.
        classes: names of classes; all by default.
        strength: lambda of the draws from N(a, lambda Sigma); by default lambda_0 of the run, or 0.5 if it has none.
        iterations: of each of the two steps, at most.
        lr: learning rates of the two steps; the published ones are 10 1. By default 1 over each image's feature error
            at the start of the step.
        pixel_weight: eta, the weight of pixels in step I.
        tolerance: an image is done when its feature error has fallen to this share, or stalls; 0 stops none early.
        truncation: of a BigGAN's noise, above 0 and at most 1.
        seed: of images, starts and draws.
        out: the folder.
    """
    from isda.lab.analysis.inversion.page import PAGE, InversionOptions, draw_inversion
    from isda.lab.cli.output import print_escaped, show
    from isda.lab.engine.processes import join_processes

    options = InversionOptions(
        images=images,
        augmented=augmented,
        classes=classes,
        strength=strength,
        iterations=iterations,
        lr=lr,
        pixel_weight=pixel_weight,
        tolerance=tolerance,
        truncation=truncation,
        seed=seed,
    )
    with join_processes(common.device) as processes, _inversion_progress(iterations, sys.stderr.isatty()) as progress:
        record = draw_inversion(run, generator, out, options, common.data_root, processes.device, progress)

    def tables() -> None:
        print("              feature error   at the start   lowered by   seen as its class")
        for name, step in (("step I", record["step_1"]), ("step II", record["step_2"])):
            print(
                f"{name:>12} {step['feature_error']:14.4g} {step['feature_error_at_start']:14.4g} "
                f"{100 * step['lowered_by']:11.1f}% {100 * step['same_class']:17.1f}%"
            )
        summary = f"{images} images, {augmented} augmented of each, strength {record['strength']:g}"
        print_escaped(f"{out / PAGE}: {summary}")

    show(record, common.json, tables)


@contextmanager
def _inversion_progress(
    iterations: int, terminal: bool
) -> Iterator[tuple[Callable[[int], None], Callable[[int], None]]]:
    """Show a bar for each step on a terminal; each further batch of images restarts it."""
    from isda.lab.engine.callbacks.progress import progress_bar

    with progress_bar(disable=not terminal) as bars:
        tasks = [bars.add_task(name, total=iterations) for name in ("step I ", "step II")]
        first, second = ((lambda done, task=task: bars.update(task, completed=done)) for task in tasks)
        yield first, second


def map_features(  # the command has this name
    runs: tyro.conf.Positional[tuple[Path, ...]],
    common: tyro.conf.OmitArgPrefixes[MeasureOptions],
    *,
    images: int = 2000,
    perplexity: float = 30.0,
    neighbours: int = 10,
    seed: int = 0,
    out: Path = Path("map.html"),
    overwrite: bool = False,
) -> None:
    """Draw maps of the features of runs, and measure how well they separate the classes.

    ``isda map runs/plain runs/isda`` (docs/maps.md)

    Args:
        runs: folders of finished runs of classifiers on one data set.
        common: data folder, device and JSON.
        images: to draw, of those that the runs were evaluated on; the same for all runs.
        perplexity: of t-SNE, about the number of neighbours that count.
        neighbours: k of the accuracy of the nearest neighbours.
        seed: of the map and of the choice of images.
        out: the page, a self-contained file.
        overwrite: replace the page even if it is a file that this command has not written.
    """
    from dataclasses import asdict, fields

    from isda.lab.analysis.maps import MAP_COLUMNS, MapOptions, Separation, draw_maps, map_cells
    from isda.lab.cli.output import check_replaceable, plain_table, print_page, show, table_console, track_progress
    from isda.lab.engine.processes import join_processes

    check_replaceable(out, "isda map", overwrite=overwrite)
    check_range("seed", seed, 0, 2**32 - 1)
    options = MapOptions(images=images, perplexity=perplexity, neighbours=neighbours, seed=seed)
    with join_processes(common.device) as processes:
        title, views = draw_maps(
            runs, out, options, common.data_root, processes.device, lambda seen: track_progress(seen, "maps", len(seen))
        )

    def tables() -> None:
        console = table_console()
        console.print(plain_table(title, MAP_COLUMNS, [map_cells(view) for view in views]))
        print_page(console, out)

    measures = [field.name for field in fields(Separation)]
    record = [
        {
            "run": str(view.evaluated.folder),
            "title": view.title,
            "images": len(view.evaluated.labels),
            "error": view.error,
        }
        | (asdict(view.separation) if view.separation else dict.fromkeys(measures))
        for view in views
    ]
    show(record, common.json, tables)


MAX_DRAWS = 1_000_000


def tightness(
    run: tyro.conf.Positional[Path],
    common: tyro.conf.OmitArgPrefixes[MeasureOptions],
    *,
    strengths: tuple[float, ...] = (),
    lambda_0: float | None = None,
    images: int = 500,
    draws: int = 1000,
    seed: int = 0,
    out: Path = Path("tightness.html"),
    overwrite: bool = False,
) -> None:
    """Measure how far the published and the tilted bound lie above the expected loss.

    ``isda train --checkpoint-steps 100 --keep 100 --out runs/one; isda tightness runs/one`` (docs/tightness.md)

    Args:
        run: a run folder of a classifier, finished or not; every checkpoint in it is a point of the curve. Of a
            finished run without checkpoints, the final network is measured.
        common: data folder, device and JSON.
        strengths: also measure the finished network at these strengths, with the covariances of its final features.
        lambda_0: the strength at the end of training; by default the run's, or 0.5 if it has none.
        images: of the training set to use.
        draws: per image and point, at most 1000000; each comes with its opposite.
        seed: of the draws and of the choice of images.
        out: the page, a self-contained file.
        overwrite: replace the page even if it is a file that this command has not written.
    """
    from isda.lab.analysis.tightness import (
        BOUNDS_COLUMNS,
        TightnessOptions,
        bounds_cells,
        bounds_record,
        draw_tightness,
    )
    from isda.lab.cli.output import check_replaceable, plain_table, print_page, show, table_console, track_progress
    from isda.lab.engine.processes import join_processes
    from isda.lab.engine.run_folder import RunFolder

    check_replaceable(out, "isda tightness", overwrite=overwrite)
    if draws > MAX_DRAWS:
        raise ValueError(f"draws must be at most {MAX_DRAWS}, got {draws}")
    options = TightnessOptions(strengths=strengths, lambda_0=lambda_0, images=images, draws=draws, seed=seed)
    with join_processes(common.device) as processes:
        title, moments, finished = draw_tightness(
            run,
            out,
            options,
            common.data_root,
            processes.device,
            lambda points: track_progress(points, "checkpoints", len(RunFolder(run).checkpoints.steps)),
        )

    def tables() -> None:
        console = table_console()
        if moments:
            rows = [[f"{moment.epoch:.1f}", *bounds_cells(moment.bounds)] for moment in moments]
            console.print(plain_table(title, ["epoch", *BOUNDS_COLUMNS], rows))
        if finished:
            name = "The finished network" if moments else f"{title}; the finished network, as there are no checkpoints"
            console.print(plain_table(name, list(BOUNDS_COLUMNS), [bounds_cells(bounds) for bounds in finished]))
        print_page(console, out)

    training = [
        {"step": moment.step, "epoch": moment.epoch, "own": moment.own} | bounds_record(moment.bounds)
        for moment in moments
    ]
    record = {"run": str(run), "training": training, "finished": [bounds_record(bounds) for bounds in finished]}
    show(record, common.json, tables)
