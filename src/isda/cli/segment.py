"""The commands ``isda segment COMMAND``."""

from pathlib import Path
from typing import Literal

import tyro

from isda.cli.compare import compare_runs
from isda.cli.runtime_options import JsonFile, RuntimeOptions
from isda.cli.tasks import CommandTask
from isda.cli.train import train_run
from isda.cli.tune import TuneOptions, tune_runs
from isda.engine.executors import ExecutorOptions
from isda.engine.task import find_task
from isda.tasks.segmentation.settings import SegmentationSettings


def train(
    settings: tyro.conf.OmitArgPrefixes[SegmentationSettings],
    machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
    *,
    out: Path | None = None,
    resume: bool = False,
    hook: tuple[str, ...] = (),
) -> None:
    """Train a segmentation network and write a run folder.

    ``isda segment train --data camvid --network pspnet-resnet-18 --width 0.25 --crop 180 --epochs 20``
    ``isda segment train --out runs/mine --resume`` goes on with a run that was interrupted, with its own settings.
    ``torchrun --nproc-per-node 4 -m isda segment train ...`` trains with four processes.

    Args:
        settings: what to learn.
        machine: where.
        out: the run folder; by default runs/DATA-NETWORK-METHOD-seedN.
        resume: go on with the run in the folder, or start it if there is none.
        hook: package.module:Class of further loggers, see isda.engine.Hook.
    """
    train_run(find_task("segmentation"), settings, machine, out, resume, hook)


def compare(
    settings: tyro.conf.OmitArgPrefixes[SegmentationSettings],
    machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
    spread: tyro.conf.OmitArgPrefixes[ExecutorOptions],
    *,
    methods: tuple[str, ...] = ("cross-entropy", "isda"),
    seeds: int = 3,
    out: Path | None = None,
    report: Path | None = None,
    json: JsonFile = None,
) -> None:
    """Train several methods with several seeds on one data set, and compare their mIoU.

    ``isda segment compare --data camvid --width 0.25 --methods cross-entropy isda:lambda_0=5 isda:covariance=full``

    For one seed all methods see the same initial weights, batches and augmentation, and differences are taken seed by
    seed. Runs that are there already are not repeated, those that were interrupted go on.

    Args:
        settings: what all runs share.
        machine: where.
        spread: where the runs are made.
        methods: what to compare, each as in --method; differences are to cross-entropy, or else to the first.
        seeds: number of paired runs of each method, at most 1000; their seeds count up from --seed.
        out: the folder for all runs; by default runs/compare-DATA.
        report: the HTML page; by default report.html in that folder.
        json: also write the table to this file as JSON; "-" writes JSON to the standard output and no table.
    """
    task = find_task("segmentation")
    compare_runs(CommandTask(task, (task,)), settings, machine, spread, methods, seeds, out, report, json)


def tune(
    settings: tyro.conf.OmitArgPrefixes[SegmentationSettings],
    machine: tyro.conf.OmitArgPrefixes[RuntimeOptions],
    tuning: tyro.conf.OmitArgPrefixes[TuneOptions],
    spread: tyro.conf.OmitArgPrefixes[ExecutorOptions],
) -> None:
    """Choose settings of methods on the validation part, then train with the choice and compare.

    ``isda segment tune --data camvid --width 0.25 --methods cross-entropy isda --seeds 3``

    The final runs are judged by the test part, where it has labels, and else by the validation part once more. Runs
    that are there already are not repeated, those that were interrupted go on: the same command makes the same choice.

    Args:
        settings: what all runs share.
        machine: where.
        tuning: what to choose, and how.
        spread: where the runs are made.
    """
    task = find_task("segmentation")
    tune_runs(CommandTask(task, (task,)), settings, machine, tuning, spread)


def evaluate(
    run: tyro.conf.Positional[Path],
    *,
    data: str | None = None,
    part: Literal["train", "validation", "test"] | None = None,
    scales: tuple[float, ...] = (1.0,),
    flip: bool = False,
    window: str | None = None,
    data_root: Path | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Measure a trained segmentation network: mIoU, per class too, at one scale or several.

    ``isda segment evaluate RUN --scales 0.75 1 1.25 1.5 --flip`` is the paper's multi-scale result with flips.

    Args:
        run: a run folder.
        data: another data set with the same classes.
        part: the images to measure on; those that the run was judged by if left out.
        scales: factors on the size of the images, from 0.01 to 10; predictions are averaged.
        flip: average with the mirrored images, too.
        window: label by sliding windows of this size, SIDE or HEIGHTxWIDTH, two thirds of it apart.
        data_root: the folder of data sets; by default the environment's ISDA_DATA, else ./data.
        device: auto, cpu, cuda or cuda:1.
        json: also write the figures to this file as JSON; "-" writes JSON to the standard output and nothing else.
    """
    from isda._utils.text import escape_control_characters
    from isda.cli.output import show
    from isda.data.segmentation import load
    from isda.engine.processes import join_processes
    from isda.tasks.segmentation.evaluation import confusion_metrics
    from isda.tasks.segmentation.settings import crop_size
    from isda.tasks.segmentation.trained import InferenceOptions, load_segmenter

    way = InferenceOptions(scales, flip, None if window is None else crop_size(window, "window"))
    trained = load_segmenter(run)
    config = trained.config
    chosen = part or config.evaluated_on
    images = load(data or config.settings.get("data") or config.data, data_root)
    with join_processes(device) as processes:
        confusion = trained.measure(images, chosen, processes, way)
        first = processes.first
    if not first:
        return
    found = confusion_metrics(confusion)
    per_class = confusion.iou_by_name(config.classes)

    def tables() -> None:
        heading = f"{config.network}, {config.method}, seed {config.seed}, on the {chosen} images of {images.name}"
        print(escape_control_characters(heading))
        width = max(map(len, ("pixel accuracy, %", *config.classes)))
        rows = {"mIoU, %": found["miou"], "pixel accuracy, %": found["accuracy"]}
        rows |= {name: float("nan") if value is None else 100 * value for name, value in per_class.items()}
        for name, value in rows.items():
            print(escape_control_characters(f"{name:>{width}} {value:7.2f}"))

    told = {"run": str(run), "data": images.name, "evaluated_on": chosen, "scales": list(scales), "flip": flip}
    show(told | {"window": way.crop} | found | {"per_class": {"iou": per_class}}, json, tables)


def predict(
    run: tyro.conf.Positional[Path],
    images: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("predictions"),
    scales: tuple[float, ...] = (1.0,),
    flip: bool = False,
    window: str | None = None,
    device: str = "auto",
    json: JsonFile = None,
) -> None:
    """Label the pixels of image files with a trained network.

    For each image NAME the folder gets NAME.png, whose pixels are class ids in the colours of the classes, and
    NAME-overlay.png to look at.

    Args:
        run: a run folder.
        images: image files of any size.
        out: the folder for the pictures.
        scales: factors on the size of the images, from 0.01 to 10; predictions are averaged.
        flip: average with the mirrored images, too.
        window: label by sliding windows of this size, SIDE or HEIGHTxWIDTH, two thirds of it apart.
        device: auto, cpu, cuda or cuda:1.
        json: also write the shares of the classes to this file as JSON; "-" writes JSON to the standard output only.
    """
    from isda._utils.files import atomic_write
    from isda._utils.text import escape_control_characters
    from isda.cli.output import show
    from isda.engine.processes import join_processes
    from isda.tasks.segmentation.pictures import dataset_colours, label_picture, overlay
    from isda.tasks.segmentation.settings import crop_size
    from isda.tasks.segmentation.trained import InferenceOptions, load_segmenter

    if not images:
        raise ValueError("images must name at least one image file, got none")
    names = [path.stem for path in images]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"images must have names of their own, got {twice!r} twice")
    way = InferenceOptions(scales, flip, None if window is None else crop_size(window, "window"))
    trained = load_segmenter(run)
    config, colours = trained.config, dataset_colours(trained.config)
    lines, records = [], []
    with join_processes(device) as processes:
        trained.network.to(processes.device)
        for path in images:
            image, labels = trained.label(path, way)
            pictures = {
                f"{path.stem}.png": label_picture(labels, config.classes, colours=colours),
                f"{path.stem}-overlay.png": overlay(image, None, labels, config.classes, colours=colours),
            }
            for name, content in pictures.items():
                with atomic_write(out / name) as unfinished:
                    unfinished.write_bytes(content)
            shares = labels.flatten().bincount(minlength=len(config.classes)) / labels.numel()
            seen = {config.classes[i]: float(shares[i]) for i in shares.argsort(descending=True).tolist() if shares[i]}
            records.append({"image": str(path), "labels": str(out / f"{path.stem}.png"), "classes": seen})
            lines.append(f"{path}: " + ", ".join(f"{name} {100 * share:.1f}%" for name, share in seen.items()))
    show(records, json, lambda: print("\n".join(map(escape_control_characters, lines))))
