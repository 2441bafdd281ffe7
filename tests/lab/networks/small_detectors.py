"""Small detectors and drawn images that the tests of detection networks share."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from isda.lab.data.coco import decode_mask
from isda.lab.networks import detection
from shapes import CATEGORY_IDS, picture

SMALL: dict[str, Any] = {
    "backbone": "fast-cnn",
    "backbone_options": {"width": 0.5},
    "min_size": 64,
    "max_size": 64,
    "fpn_channels": 8,
    "head_dim": 16,
    "proposals": 40,
    "anchor_samples": 32,
    "box_samples": 24,
    "detections": 10,
    "score_threshold": 0.01,
}


def small(name: str, dtype: torch.dtype = torch.float64, **changes: Any) -> detection.Detector:
    """A detector of four kinds."""
    torch.manual_seed(1)
    made = detection.create(name, 4, **(SMALL | changes)).to(dtype)
    # New predictors score all alike: larger weights make for detections that differ.
    for parameter_name, parameter in made.roi_heads.named_parameters():
        if "cls_score" in parameter_name or "bbox_pred" in parameter_name:
            torch.nn.init.normal_(parameter)
    return made


def drawn(count: int, size: int = 64, seed: int = 0) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """Images and their targets, each with a key."""
    draw = random.Random(seed)
    images, targets = [], []
    for key in range(count):
        pixels, objects = picture(draw, size, most=4, largest=40)
        images.append(torch.from_numpy(pixels.copy()).permute(2, 0, 1).double() / 255)
        corners = torch.tensor([one["bbox"] for one in objects], dtype=torch.float64)
        targets.append(
            {
                "boxes": torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:]], 1),
                "labels": torch.tensor([CATEGORY_IDS.index(one["category_id"]) + 1 for one in objects]),
                "masks": torch.stack([decode_mask(one["segmentation"], size, size) for one in objects]),
                "key": key,
            }
        )
    return images, targets
