"""Segmentation networks at any scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from isda.networks import segmentation as networks
from isda.reproduce.scale import Scale
from isda.reproduce.sizes import Size, count_size
from isda.reproduce.training import Shrunk, Training
from isda.reproduce.work import Work, training_work
from isda.segmentation.recipes import BATCH_SIZE, CROP, STEPS
from isda.segmentation.settings import Settings

__all__ = ["SegmentationTraining", "segmentation"]

CLASSES, IMAGES = 19, 2975
"""Of Cityscapes."""
WIDTHS = {"small": 0.25, "smoke": 0.0625}
CROPS = {"small": 193, "smoke": 25}


@dataclass(frozen=True, kw_only=True)
class SegmentationTraining(Training):
    """A network that gives every pixel a class."""

    task: ClassVar[str] = "segmentation"
    settings: Settings

    def shrunk(self, scale: Scale, root: Path | None) -> Shrunk:
        """Smaller crops, a narrower network with random weights, fewer epochs over all images."""
        smaller = replace(
            self.settings,
            epochs=scale.epochs,
            evaluate_every=scale.epochs,
            batch_size=4,
            width=WIDTHS[scale.name],
            crop=str(CROPS[scale.name]),
            pretrained=None,
            stem=None,
        )
        told = (
            f"network {self.settings.network} has {WIDTHS[scale.name]:g} of its channels and random initial weights",
            f"crops have {CROPS[scale.name]} pixels a side; all images are used",
        )
        return Shrunk(smaller, told)

    def work(self, scale: Scale, root: Path | None) -> Work:
        """That of the network on crops."""
        settings: Any = self.at(scale, root).settings
        side = int(settings.crop or CROP)
        samples = STEPS * BATCH_SIZE if settings.epochs is None else settings.epochs * IMAGES
        return training_work(*_size(settings.network, settings.width or 1.0, side), samples)


def segmentation(network: str, method: str) -> SegmentationTraining:
    """A training of the paper's Table 7, from torchvision's ImageNet weights; strengths are chosen as published."""
    settings = Settings(
        data="cityscapes",
        network=network,
        method=method,
        pretrained="torchvision",
        stem="torchvision",
        multi_scale=True,
    )
    return SegmentationTraining(settings=settings)


@cache
def _size(network: str, width: float, side: int) -> Size:
    with torch.device("meta"):
        made = networks.create(network, CLASSES, width=width)
    return count_size(made, side)
