"""How good a detector is: COCO's average precision of boxes and masks, by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isda.data.coco import CocoPart, encode_mask
from isda.detection.figures import SUMMARY
from isda.networks.modes import in_eval_mode

__all__ = ["Scores", "detect", "records_of", "score"]

MASK_THRESHOLD = 0.5


@dataclass(frozen=True)
class Scores:
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


def score(part: CocoPart, records: Sequence[dict[str, Any]], *, masks: bool) -> Scores:
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
    return Scores(figures, per_class)


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
