"""COCO's average precision of boxes and masks (pycocotools), pictures of detections, and trained detectors."""

from __future__ import annotations

import colorsys
import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from isda._utils.files import atomic_write
from isda.data.coco import CocoData, CocoPart
from isda.data.coco_masks import encode_mask
from isda.data.image_files import read_image
from isda.engine.config import Figure
from isda.networks.detection import Detector, has_masks
from isda.networks.network import in_eval_mode
from isda.tasks.common.evaluation import TRAIN_LOSS
from isda.tasks.common.trained import open_run
from isda.tasks.detection.backbone import create_detector
from isda.tasks.detection.data import evaluation_images
from isda.tasks.detection.settings import DetectionConfig

EVALUATED_ON = "validation"

SUMMARY = {
    "ap": "AP",
    "ap50": "AP50",
    "ap75": "AP75",
    "ap_small": "AP small",
    "ap_medium": "AP medium",
    "ap_large": "AP large",
}
"""The first six figures of COCO's summary, in its order."""


def figures_for(masks: bool) -> tuple[Figure, ...]:
    """The figures of a run, box AP first; those of masks with the prefix ``mask_``."""
    kinds = [("", "box"), ("mask_", "mask")] if masks else [("", "box")]
    measured = [
        Figure(
            name=prefix + name,
            metric=f"{EVALUATED_ON}/{prefix}{name}",
            title=f"{kind} {title}",
            unit="%",
            digits=1,
            lower_is_better=False,
        )
        for prefix, kind in kinds
        for name, title in SUMMARY.items()
    ]
    return (*measured, TRAIN_LOSS)


MASK_THRESHOLD = 0.5


@dataclass(frozen=True)
class DetectionScores:
    """COCO's figures in percent; those that nothing was there to measure are left out."""

    figures: dict[str, float]
    per_class: dict[str, dict[str, float]]
    """AP by the class's name, of boxes under "ap", of masks under "mask_ap"."""


@torch.no_grad()
def detect(
    network: nn.Module, images: Iterable[tuple[int, Tensor]], device: torch.device
) -> Iterable[tuple[int, dict[str, Tensor]]]:
    """What a detector finds in each image (a position and bytes (3, H, W)); its mode is as before afterwards.

    Boxes (K, 4), labels (K,), scores (K,) and, of those that make them, masks (K, 1, H, W) as truth values.
    """
    dtype = next(network.parameters()).dtype
    with in_eval_mode(network):
        for position, image in images:
            found = network([image.to(device).to(dtype) / 255])[0]
            if "masks" in found:
                # Where they were made: as probabilities they are four times as many bytes to send.
                found["masks"] = found["masks"] > MASK_THRESHOLD
            yield position, {key: value.cpu() for key, value in found.items()}


def records_of(found: dict[str, Tensor], image_id: int, category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """The detections of an image as the records of a COCO result file."""
    records = []
    for number, (box, label, value) in enumerate(
        zip(found["boxes"].tolist(), found["labels"].tolist(), found["scores"].tolist(), strict=True)
    ):
        left, top, right, bottom = box
        record = {
            "image_id": image_id,
            "category_id": category_ids[label - 1],
            "bbox": [left, top, right - left, bottom - top],
            "score": value,
        }
        if "masks" in found:
            record["segmentation"] = encode_mask(found["masks"][number, 0])
        records.append(record)
    return records


def coco_scores(part: CocoPart, records: Sequence[dict[str, Any]], *, masks: bool) -> DetectionScores:
    """COCO's figures of the detections in all images of a part.

    Args:
        part: the truth.
        records: as `records_of` makes them.
        masks: measure masks as well as boxes.
    """
    figures: dict[str, float] = {}
    per_class: dict[str, dict[str, float]] = {}
    truth = _coco(_truth(part), part)
    for prefix, kind in (("", "bbox"), ("mask_", "segm")) if masks else (("", "bbox"),):
        precision, summary = _evaluate(truth, _found(records, part, kind), kind)
        figures |= {prefix + name: 100 * value for name, value in zip(SUMMARY, summary, strict=False) if value >= 0}
        # T x R x K x A x M: all thresholds and recalls of a class, any area, most detections.
        by_class = [precision[:, :, number, 0, -1] for number in range(len(part.categories))]
        per_class[f"{prefix}ap"] = {
            name: 100 * float(values[values >= 0].mean())
            for name, values in zip(part.categories.values(), by_class, strict=True)
            if (values >= 0).any()
        }
    return DetectionScores(figures, per_class)


def _truth(part: CocoPart) -> list[dict[str, Any]]:
    """The annotations with all that pycocotools reads of them."""
    made = []
    # It takes the id 0 for "no match".
    for number, one in enumerate(part.content["annotations"], start=1):
        left, top, width, height = one["bbox"]
        corners = [left, top, left + width, top, left + width, top + height, left, top + height]
        made.append(
            one
            | {
                "id": number,
                "iscrowd": int(bool(one.get("iscrowd"))),
                "area": one.get("area", width * height),
                "segmentation": [corners] if one.get("segmentation") is None else one["segmentation"],
            }
        )
    return made


def _found(records: Sequence[dict[str, Any]], part: CocoPart, kind: str) -> Any:
    """Detections as boxes or as masks, each with its own area."""
    from pycocotools import mask

    made = []
    for number, one in enumerate(records, start=1):
        record = {name: one[name] for name in ("image_id", "category_id", "score")} | {"id": number, "iscrowd": 0}
        if kind == "bbox":
            made.append(record | {"bbox": one["bbox"], "area": one["bbox"][2] * one["bbox"][3]})
        else:
            encoded = one["segmentation"]
            area = int(mask.area({"size": encoded["size"], "counts": encoded["counts"].encode("ascii")}))
            made.append(record | {"segmentation": encoded, "area": area})
    return _coco(made, part)


def _coco(annotations: list[dict[str, Any]], part: CocoPart) -> Any:
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        made = COCO()
        made.dataset = {
            "images": part.content["images"],
            "categories": part.content["categories"],
            "annotations": annotations,
        }
        made.createIndex()
    return made


def _evaluate(truth: Any, found: Any, kind: str) -> tuple[np.ndarray[Any, Any], list[float]]:
    """The table of precisions, and the numbers of COCO's summary."""
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(truth, found, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.eval["precision"], [float(value) for value in evaluation.stats]


PICTURE_COUNT = 4
"""Kept of a run."""
SHOWN_SCORE = 0.5
"""The least score of what is drawn."""
SMALLEST = 320
"""Pixels of the short side of a picture: names must be legible."""
GOLDEN_ANGLE = 0.381966


def class_colour(label: int) -> tuple[int, int, int]:
    """A colour for a label from 1; neighbours differ.

    Example:
        >>> class_colour(1)
        (242, 48, 48)
    """
    red, green, blue = colorsys.hsv_to_rgb((label - 1) * GOLDEN_ANGLE % 1, 0.8, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_detections(
    image: Tensor, found: dict[str, Tensor], classes: Sequence[str], least: float = SHOWN_SCORE
) -> Image.Image:
    """An image with what was found in it.

    Args:
        image: uint8 (3, H, W).
        found: boxes (K, 4) and labels (K,), scores (K,) and masks (K, 1, H, W) where there are any.
        classes: names; that of label 1 first.
        least: score of what is drawn.
    """
    scores = found.get("scores", torch.ones(len(found["labels"])))
    shown = (scores >= least).nonzero().flatten().tolist()
    pixels = image.permute(1, 2, 0).numpy().astype(np.float32)
    for number in shown if "masks" in found else ():
        inside = (found["masks"][number].reshape(pixels.shape[:2]) > 0.5).numpy()
        pixels[inside] = 0.5 * pixels[inside] + 0.5 * np.array(class_colour(int(found["labels"][number])))
    factor = max(1.0, SMALLEST / min(pixels.shape[:2]))
    size = (round(pixels.shape[1] * factor), round(pixels.shape[0] * factor))
    picture = Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)).resize(size)
    brush = ImageDraw.Draw(picture)
    for number in shown:
        label = int(found["labels"][number])
        left, top, right, bottom = (factor * value for value in found["boxes"][number].tolist())
        brush.rectangle((left, top, right, bottom), outline=class_colour(label), width=2)
        told = f"{classes[label - 1]} {float(scores[number]):.2f}" if "scores" in found else classes[label - 1]
        place = brush.textbbox((left + 3, max(0.0, top - 12)), told)
        brush.rectangle(place, fill=class_colour(label))
        brush.text((left + 3, max(0.0, top - 12)), told, fill=(0, 0, 0))
    return picture


def draw_beside_truth(
    part: CocoPart, position: int, found: dict[str, Tensor], masks: bool, classes: Sequence[str]
) -> Image.Image:
    """What is in an image on the left, what was found on the right."""
    image = part.image(position)
    truth, prediction = (
        draw_detections(image, part.target(position, masks), classes),
        draw_detections(image, found, classes),
    )
    both = Image.new("RGB", (truth.width + prediction.width + 4, truth.height), (255, 255, 255))
    both.paste(truth, (0, 0))
    both.paste(prediction, (truth.width + 4, 0))
    return both


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a PNG, as a whole or not at all."""
    with atomic_write(path) as unfinished:
        picture.save(unfinished, format="PNG")


@dataclass(frozen=True)
class TrainedDetector:
    """A detector with its final weights, in eval mode, and the configuration it was trained with."""

    config: DetectionConfig
    network: Detector

    def measure(self, data: CocoData, device: torch.device, workers: int = 4) -> DetectionScores:
        """COCO's figures on the validation images of the run's data set, or of another with the same categories.

        Raises:
            ValueError: the categories differ.
        """
        part = data.validation
        mine = dict(zip(self.config.category_ids, self.config.classes, strict=True))
        if part.categories != mine:
            raise ValueError(f"data must have the {len(mine)} categories of the run, ids and names alike: {data.name}")
        images = evaluation_images(part, torch.arange(len(part)), workers)
        records = [
            record
            for position, found in detect(self.network.to(device), images, device)
            for record in records_of(found, part.images[position].id, self.config.category_ids)
        ]
        return coco_scores(part, records, masks=has_masks(self.config.network))

    def find(self, paths: Sequence[Path], device: torch.device) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Each image (3, H, W) of the files, and what is found in it."""
        images = [read_image(path) for path in paths]
        for path, image in zip(paths, images, strict=True):
            try:
                self.network.transform.resized(*image.shape[1:])
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        numbered: Iterable[tuple[int, Tensor]] = enumerate(images)
        for number, found in detect(self.network.to(device), numbered, device):
            yield images[number], found


def load_detector(folder: Path) -> TrainedDetector:
    """The network of a finished run.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    return TrainedDetector(*open_run(folder, "detection", "a detector", DetectionConfig, create_detector))
