"""The commands ``isda segment COMMAND``."""

from pathlib import Path
from typing import Literal

import tyro

from isda.lab.cli.runtime_options import Device, JsonFile, MeasureOptions, check_image_files

TASK = "segmentation"
SETTINGS = "isda.lab.tasks.segmentation.settings:SegmentationSettings"
COMPARED = ("cross-entropy", "isda")
TASK_COMMANDS = {
    "train": """
``isda segment train --data camvid --network pspnet-resnet-18 --width 0.25 --crop 180 --epochs 20``
``isda segment train --out runs/mine --resume`` resumes an interrupted run with its own settings.
``torchrun --nproc-per-node 4 -m isda segment train ...`` trains with four processes.
""",
    "compare": """
``isda segment compare --data camvid --width 0.25 --methods cross-entropy isda:lambda_0=5 isda:covariance=full``

For one seed all methods see the same initial weights, batches and augmentation, and differences are taken seed by
seed. Finished runs are not repeated, interrupted ones are resumed.
""",
    "tune": """
``isda segment tune --data camvid --width 0.25 --methods cross-entropy isda --seeds 3``

The final runs are evaluated on the test part, where it has labels, and else on the validation part again. Finished
runs are not repeated, interrupted ones are resumed: the same command makes the same choice.
""",
}
"""Help of the commands that are generated from the task."""


def evaluate(
    run: tyro.conf.Positional[Path],
    common: tyro.conf.OmitArgPrefixes[MeasureOptions],
    *,
    data: str | None = None,
    part: Literal["train", "validation", "test"] | None = None,
    scales: tuple[float, ...] = (1.0,),
    flip: bool = False,
    window: str | None = None,
) -> None:
    """Measure a trained segmentation network: mIoU, per class too, at one scale or several.

    ``isda segment evaluate RUN --scales 0.75 1 1.25 1.5 --flip`` is the paper's multi-scale result with flips.

    Args:
        run: a run folder.
        common: data folder, device and JSON.
        data: another data set with the same classes.
        part: the images to measure on; by default those that the run was evaluated on.
        scales: factors on the size of the images, from 0.01 to 10; predictions are averaged.
        flip: average with the mirrored images, too.
        window: label by sliding windows of this size, SIDE or HEIGHTxWIDTH, two thirds of it apart.
    """
    from isda.lab.cli.output import print_escaped, show
    from isda.lab.data.segmentation import load
    from isda.lab.engine.processes import join_processes
    from isda.lab.tasks.segmentation.evaluation import confusion_metrics
    from isda.lab.tasks.segmentation.settings import crop_size
    from isda.lab.tasks.segmentation.trained import InferenceOptions, load_segmenter

    inference = InferenceOptions(scales, flip, None if window is None else crop_size(window, "window"))
    trained = load_segmenter(run)
    config = trained.config
    evaluated_on = part or config.evaluated_on
    images = load(data or config.settings.get("data") or config.data, common.data_root)
    with join_processes(common.device) as processes:
        confusion = trained.measure(images, evaluated_on, processes, inference)
    if not processes.first:
        return
    metrics = confusion_metrics(confusion)
    per_class = confusion.iou_by_name(config.classes)

    def tables() -> None:
        heading = f"{config.network}, {config.method}, seed {config.seed}"
        print_escaped(f"{heading}, on the {evaluated_on} images of {images.name}")
        width = max(map(len, ("pixel accuracy, %", *config.classes)))
        rows = {"mIoU, %": metrics["miou"], "pixel accuracy, %": metrics["accuracy"]}
        rows |= {name: float("nan") if value is None else 100 * value for name, value in per_class.items()}
        for name, value in rows.items():
            print_escaped(f"{name:>{width}} {value:7.2f}")

    record = {"run": str(run), "data": images.name, "evaluated_on": evaluated_on, "scales": list(scales), "flip": flip}
    show(record | {"window": inference.crop} | metrics | {"per_class": {"iou": per_class}}, common.json, tables)


def predict(
    run: tyro.conf.Positional[Path],
    images: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("predictions"),
    scales: tuple[float, ...] = (1.0,),
    flip: bool = False,
    window: str | None = None,
    device: Device = "auto",
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
        device: to compute on.
        json: a file for the result as JSON.
    """
    from isda.lab.cli.output import print_escaped, show
    from isda.lab.engine.processes import join_processes
    from isda.lab.files import atomic_write
    from isda.lab.tasks.segmentation.pictures import dataset_colours, label_picture, overlay
    from isda.lab.tasks.segmentation.settings import crop_size
    from isda.lab.tasks.segmentation.trained import InferenceOptions, load_segmenter

    check_image_files(images, distinct_names=True)
    inference = InferenceOptions(scales, flip, None if window is None else crop_size(window, "window"))
    trained = load_segmenter(run)
    config, colours = trained.config, dataset_colours(trained.config)
    lines, records = [], []
    with join_processes(device) as processes:
        trained.network.to(processes.device)
        for path in images:
            image, labels = trained.label(path, inference)
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
    show(records, json, lambda: print_escaped("\n".join(lines)))
