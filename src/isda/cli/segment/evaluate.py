"""The command ``isda segment evaluate``."""

from pathlib import Path
from typing import Literal

import tyro

from isda.cli.options import JsonFile

__all__ = ["evaluate"]


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
    from isda.cli.output import show
    from isda.data.segmentation import load
    from isda.engine.processes import join_processes
    from isda.plain_text import harmless
    from isda.segmentation.evaluation import measures
    from isda.segmentation.resolving import crop_size
    from isda.segmentation.trained import Way, load_trained

    way = Way(scales, flip, None if window is None else crop_size(window, "window"))
    trained = load_trained(run)
    config = trained.config
    chosen = part or config.evaluated_on
    images = load(data or config.asked.get("data") or config.data, data_root)
    with join_processes(device) as processes:
        confusion = trained.measure(images, chosen, processes, way)
        first = processes.first
    if not first:
        return
    found = measures(confusion)
    per_class = confusion.iou_by_name(config.classes)

    def tables() -> None:
        heading = f"{config.network}, {config.method}, seed {config.seed}, on the {chosen} images of {images.name}"
        print(harmless(heading))
        width = max(map(len, ("pixel accuracy, %", *config.classes)))
        rows = {"mIoU, %": found["miou"], "pixel accuracy, %": found["accuracy"]}
        rows |= {name: float("nan") if value is None else 100 * value for name, value in per_class.items()}
        for name, value in rows.items():
            print(harmless(f"{name:>{width}} {value:7.2f}"))

    told = {"run": str(run), "data": images.name, "evaluated_on": chosen, "scales": list(scales), "flip": flip}
    show(told | {"window": way.crop} | found | {"per_class": {"iou": per_class}}, json, tables)
