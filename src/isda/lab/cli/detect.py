"""The commands ``isda detect COMMAND``."""

from pathlib import Path

import tyro

from isda.lab.cli.runtime_options import Device, JsonFile, MeasureOptions, check_image_files

TASK = "detection"
SETTINGS = "isda.lab.tasks.detection.settings:DetectionSettings"
COMPARED = ()
TASK_COMMANDS = {
    "train": """
``isda detect train --data coco --network mask-rcnn --backbone runs/imagenet-resnet-50-isda-seed0``
``isda detect train --out runs/mine --resume`` resumes an interrupted run with its own settings.
``torchrun --nproc-per-node 8 -m isda detect train ...`` trains with eight processes.
""",
    "compare": """
``isda detect compare --data coco --methods multi-task:backbone=runs/ce multi-task:backbone=runs/isda``

For one seed all runs see the same batches and mirroring, detectors on one network start with the same heads, and
differences are taken seed by seed. Finished runs are not repeated, interrupted ones are resumed.
""",
}
"""Help of the commands that are generated from the task."""


def evaluate(
    run: tyro.conf.Positional[Path],
    common: tyro.conf.OmitArgPrefixes[MeasureOptions],
    *,
    data: str | None = None,
) -> None:
    """Measure a trained detector: COCO's average precision of boxes and masks, per class too.

    Args:
        run: a run folder.
        common: data folder, device and JSON.
        data: another set with the same categories, on whose validation images the detector is evaluated instead.
    """
    from isda.lab.cli.output import print_escaped, show
    from isda.lab.data.coco import load
    from isda.lab.engine.processes import join_processes
    from isda.lab.tasks.detection.evaluation import load_detector

    trained = load_detector(run)
    config = trained.config
    images = load(data or config.settings.get("data", config.data), common.data_root)
    with join_processes(common.device) as processes:
        scores = trained.measure(images, processes.device)

    def tables() -> None:
        print_escaped(f"{config.describe()}, on the validation images of {images.name}")
        for figure in config.figures:
            if figure.name in scores.figures:
                print(f"{figure.heading:>24} {scores.figures[figure.name]:6.1f}")
        for name, value in scores.per_class["ap"].items():
            print_escaped(f"{name:>24} {value:6.1f}")

    record = {"run": str(run), "data": images.name, "scale": config.scale} | scores.figures
    show(record | {"per_class": scores.per_class}, common.json, tables)


def predict(
    run: tyro.conf.Positional[Path],
    images: tyro.conf.Positional[tuple[Path, ...]],
    *,
    out: Path = Path("detections"),
    score: float = 0.5,
    device: Device = "auto",
    json: JsonFile = None,
) -> None:
    """Find objects in image files, and draw their boxes and masks.

    The JSON lists detections as in COCO's result files.

    Args:
        run: a run folder.
        images: image files.
        out: the folder for one PNG per image, with boxes, masks and names.
        score: least score of objects that are drawn and listed.
        device: to compute on.
        json: a file for the result as JSON.
    """
    from isda.lab.cli.output import print_escaped, show
    from isda.lab.engine.processes import join_processes
    from isda.lab.tasks.common.pictures import save_picture
    from isda.lab.tasks.detection.evaluation import draw_detections, load_detector, records_of

    if not 0 <= score <= 1:
        raise ValueError(f"score must lie in 0..1, got {score}")
    check_image_files(images, distinct_names=True)
    trained = load_detector(run)
    config = trained.config
    names = dict(zip(config.category_ids, config.classes, strict=True))
    lines, records = [], []
    with join_processes(device) as processes:
        for path, (image, detections) in zip(images, trained.find(images, processes.device), strict=True):
            kept = {key: value[detections["scores"] >= score] for key, value in detections.items()}
            picture = out / f"{path.stem}.png"
            save_picture(draw_detections(image, kept, config.classes, score), picture)
            objects = records_of(kept, 0, config.category_ids)
            for detected in objects:
                detected.pop("image_id")
                detected["name"] = names[detected["category_id"]]
            summary = ", ".join(f"{detected['name']} {detected['score']:.2f}" for detected in objects) or "nothing"
            lines.append(f"{path}: {summary} ({picture})")
            records.append({"image": str(path), "picture": str(picture), "objects": objects})
    show(records, json, lambda: print_escaped("\n".join(lines)))
