"""COCO's average precision of boxes and masks (pycocotools), pictures of detections, and trained detectors."""

from __future__ import annotations

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

from isda.lab.data.coco import CocoData, CocoPart, encode_mask
from isda.lab.data.image_files import read_image
from isda.lab.devices import in_eval_mode
from isda.lab.engine.config import Figure
from isda.lab.networks.detection import Detector, has_masks
from isda.lab.tasks.common.evaluation import TRAIN_LOSS
from isda.lab.tasks.common.pictures import Colour, distinct_colour
from isda.lab.tasks.common.trained import open_run
from isda.lab.tasks.detection.backbone import create_detector
from isda.lab.tasks.detection.data import evaluation_images
from isda.lab.tasks.detection.settings import DetectionConfig

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
    """COCO's figures in percent; those without any object to measure are omitted."""

    figures: dict[str, float]
    per_class: dict[str, dict[str, float]]
    """AP by the class's name, of boxes under "ap", of masks under "mask_ap"."""


@torch.no_grad()
def detect(
    network: nn.Module, images: Iterable[tuple[int, Tensor]], device: torch.device
) -> Iterable[tuple[int, dict[str, Tensor]]]:
    """The detections in each image, given as a position and uint8 (3, H, W); the network's mode is restored.

    Boxes (K, 4), labels (K,), scores (K,) and, if the network has them, boolean masks (K, 1, H, W).
    """
    dtype = next(network.parameters()).dtype
    with in_eval_mode(network):
        for position, image in images:
            detections = network([image.to(device).to(dtype) / 255])[0]
            if "masks" in detections:
                # On the device: probabilities would be four times as many bytes to transfer.
                detections["masks"] = detections["masks"] > MASK_THRESHOLD
            yield position, {key: value.cpu() for key, value in detections.items()}


def detection_records(
    network: nn.Module,
    part: CocoPart,
    positions: Tensor,
    category_ids: Sequence[int],
    device: torch.device,
    workers: int,
) -> list[dict[str, Any]]:
    """The detections in the images at some positions of a part, as the records of a COCO result file."""
    images = evaluation_images(part, positions, workers)
    return [
        record
        for position, detections in detect(network, images, device)
        for record in records_of(detections, part.images[position].id, category_ids)
    ]


def records_of(detections: dict[str, Tensor], image_id: int, category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """The detections of an image as the records of a COCO result file."""
    records = []
    for number, (box, label, value) in enumerate(
        zip(*(detections[name].tolist() for name in ("boxes", "labels", "scores")), strict=True)
    ):
        left, top, right, bottom = box
        record = {
            "image_id": image_id,
            "category_id": category_ids[label - 1],
            "bbox": [left, top, right - left, bottom - top],
            "score": value,
        }
        if "masks" in detections:
            record["segmentation"] = encode_mask(detections["masks"][number, 0])
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
        precision, summary = _evaluate(truth, _detections(records, part, kind), kind)
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
    """The annotations with every field that pycocotools reads."""
    annotations = []
    # For pycocotools the id 0 means "no match".
    for number, annotation in enumerate(part.content["annotations"], start=1):
        left, top, width, height = annotation["bbox"]
        corners = [left, top, left + width, top, left + width, top + height, left, top + height]
        masks = annotation.get("segmentation")
        annotations.append(
            annotation
            | {
                "id": number,
                "iscrowd": int(bool(annotation.get("iscrowd"))),
                "area": annotation.get("area", width * height),
                "segmentation": [corners] if masks is None else masks,
            }
        )
    return annotations


def _detections(records: Sequence[dict[str, Any]], part: CocoPart, kind: str) -> Any:
    """Detections as boxes or as masks, each with its own area."""
    from pycocotools import mask

    annotations = []
    for number, record in enumerate(records, start=1):
        common = {name: record[name] for name in ("image_id", "category_id", "score")} | {"id": number, "iscrowd": 0}
        if kind == "bbox":
            annotations.append(common | {"bbox": record["bbox"], "area": record["bbox"][2] * record["bbox"][3]})
        else:
            encoded = record["segmentation"]
            area = int(mask.area({"size": encoded["size"], "counts": encoded["counts"].encode("ascii")}))
            annotations.append(common | {"segmentation": encoded, "area": area})
    return _coco(annotations, part)


def _coco(annotations: list[dict[str, Any]], part: CocoPart) -> Any:
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": part.content["images"],
            "categories": part.content["categories"],
            "annotations": annotations,
        }
        coco.createIndex()
    return coco


def _evaluate(truth: Any, detections: Any, kind: str) -> tuple[np.ndarray[Any, Any], list[float]]:
    """The table of precisions, and the numbers of COCO's summary."""
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(truth, detections, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.eval["precision"], [float(value) for value in evaluation.stats]


PICTURE_COUNT = 4
"""Pictures of a run."""
SHOWN_SCORE = 0.5
"""The least score of a detection that is drawn."""
SMALLEST = 320
"""Pixels of the short side of a picture: names must be legible."""


def class_colour(label: int) -> Colour:
    """A colour for a label from 1; neighbours differ.

    Example:
        >>> class_colour(1)
        (242, 48, 48)
    """
    return distinct_colour(label - 1, 0.8, 0.95)


def draw_detections(
    image: Tensor, detections: dict[str, Tensor], classes: Sequence[str], least: float = SHOWN_SCORE
) -> Image.Image:
    """An image with the detections in it.

    Args:
        image: uint8 (3, H, W).
        detections: boxes (K, 4) and labels (K,), scores (K,) and masks (K, 1, H, W) if there are any.
        classes: names; that of label 1 first.
        least: the least score of a detection that is drawn.
    """
    scores = detections.get("scores", torch.ones(len(detections["labels"])))
    shown = (scores >= least).nonzero().flatten().tolist()
    pixels = image.permute(1, 2, 0).numpy().astype(np.float32)
    for number in shown if "masks" in detections else ():
        inside = (detections["masks"][number].reshape(pixels.shape[:2]) > 0.5).numpy()
        pixels[inside] = 0.5 * pixels[inside] + 0.5 * np.array(class_colour(int(detections["labels"][number])))
    factor = max(1.0, SMALLEST / min(pixels.shape[:2]))
    size = (round(pixels.shape[1] * factor), round(pixels.shape[0] * factor))
    picture = Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8)).resize(size)
    brush = ImageDraw.Draw(picture)
    for number in shown:
        label = int(detections["labels"][number])
        left, top, right, bottom = (factor * value for value in detections["boxes"][number].tolist())
        brush.rectangle((left, top, right, bottom), outline=class_colour(label), width=2)
        text = f"{classes[label - 1]} {float(scores[number]):.2f}" if "scores" in detections else classes[label - 1]
        corner = left + 3, max(0.0, top - 12)
        brush.rectangle(brush.textbbox(corner, text), fill=class_colour(label))
        brush.text(corner, text, fill=(0, 0, 0))
    return picture


def draw_beside_truth(
    part: CocoPart, position: int, detections: dict[str, Tensor], masks: bool, classes: Sequence[str]
) -> Image.Image:
    """An image with its objects on the left, with the detections on the right."""
    image = part.image(position)
    truth = draw_detections(image, part.target(position, masks), classes)
    prediction = draw_detections(image, detections, classes)
    both = Image.new("RGB", (truth.width + prediction.width + 4, truth.height), (255, 255, 255))
    both.paste(truth, (0, 0))
    both.paste(prediction, (truth.width + 4, 0))
    return both


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
        categories = dict(zip(self.config.category_ids, self.config.classes, strict=True))
        if part.categories != categories:
            raise ValueError(
                f"data must have the {len(categories)} categories of the run, ids and names alike: {data.name}"
            )
        network, positions = self.network.to(device), torch.arange(len(part))
        records = detection_records(network, part, positions, self.config.category_ids, device, workers)
        return coco_scores(part, records, masks=has_masks(self.config.network))

    def find(self, paths: Sequence[Path], device: torch.device) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Each image (3, H, W) of the files, and the detections in it."""
        images = [read_image(path) for path in paths]
        for path, image in zip(paths, images, strict=True):
            try:
                self.network.transform.resized_size(*image.shape[1:])
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
        numbered: Iterable[tuple[int, Tensor]] = enumerate(images)
        for number, detections in detect(self.network.to(device), numbered, device):
            yield images[number], detections


def load_detector(folder: Path) -> TrainedDetector:
    """The network of a finished run.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged weights.
    """
    return TrainedDetector(*open_run(folder, "detection", "a detector", DetectionConfig, create_detector))
