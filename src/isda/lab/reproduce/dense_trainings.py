"""Segmentation networks and detectors at any scale."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from isda.lab.engine.settings import AUTO
from isda.lab.networks import segmentation as networks
from isda.lab.reproduce.training import Scale, ScaledSettings, Training
from isda.lab.reproduce.workload import NetworkSize, Work, count_size, network_size, training_work
from isda.lab.tasks.detection.settings import RECIPE, DetectionSettings
from isda.lab.tasks.segmentation.settings import BATCH_SIZE, STEPS, SegmentationSettings

CITYSCAPES_CLASSES, CITYSCAPES_IMAGES = 19, 2975
"""Of Cityscapes."""
SEGMENTATION_WIDTHS = {"small": 0.25, "smoke": 0.0625}
CROPS = {"small": 193, "smoke": 25}


@dataclass(frozen=True, kw_only=True)
class SegmentationTraining(Training):
    """A segmentation network."""

    task: ClassVar[str] = "segmentation"
    settings: SegmentationSettings

    def scaled(self, scale: Scale, root: Path | None) -> ScaledSettings:
        """Smaller crops, a narrower network with random weights, fewer epochs over all images."""
        settings = replace(
            self.settings,
            epochs=scale.epochs,
            evaluate_every=scale.epochs,
            batch_size=4,
            width=SEGMENTATION_WIDTHS[scale.name],
            crop=str(CROPS[scale.name]),
            window=str(CROPS[scale.name]),
            pretrained=None,
            stem=AUTO,
        )
        differences = (
            f"network {self.settings.network} has {SEGMENTATION_WIDTHS[scale.name]:g} of its channels and random "
            "initial weights",
            f"crops have {CROPS[scale.name]} pixels a side; all images are used",
        )
        return ScaledSettings(settings, differences)

    def work(self, scale: Scale, root: Path | None) -> Work:
        """That of the network on crops."""
        settings: Any = self.at(scale, root).settings
        side = int(settings.crop)
        samples = STEPS * BATCH_SIZE if settings.epochs is None else settings.epochs * CITYSCAPES_IMAGES
        return training_work(*_size(settings.network, settings.width, side), samples, settings.precision)


def segmentation(network: str, method: str) -> SegmentationTraining:
    """A training of the paper's Table 7, from torchvision's ImageNet weights, with published strengths.

    Evaluation by sliding windows and synchronised batch norm are those of the authors' code.
    """
    settings = SegmentationSettings(
        data="cityscapes",
        network=network,
        method=method,
        pretrained="torchvision",
        stem="torchvision",
        multi_scale=True,
        window="769",
        sync_batch_norm=True,
    )
    return SegmentationTraining(settings=settings)


@cache
def _size(network: str, width: float, side: int) -> NetworkSize:
    with torch.device("meta"):
        created = networks.create(network, CITYSCAPES_CLASSES, width=width)
    return count_size(created, side)


COCO_IMAGES = 117_266
"""Of COCO's training set, with objects."""
MULTIPLY_ADDS = {"faster-rcnn": 209e9, "mask-rcnn": 268e9, "cascade-rcnn": 223e9}
"""Counted for a training step on one image of 800x1333 pixels with ResNet-50; masks of 128 regions take 59e9."""
PIXELS = 800 * 1333
SMALLER_DETECTORS: dict[str, dict[str, Any]] = {
    "small": {"min_size": 200, "max_size": 333, "fpn_channels": 64, "head_dim": 256, "proposals": 200, "batch_size": 8},
    "smoke": {
        "min_size": 48,
        "max_size": 64,
        "fpn_channels": 8,
        "head_dim": 16,
        "proposals": 20,
        "box_samples": 16,
        "anchor_scale": 2.0,
        "batch_size": 4,
        "batch_norm": "trained",
        "lr": 1e-3,
    },
}


@dataclass(frozen=True, kw_only=True)
class DetectorTraining(Training):
    """A detector."""

    task: ClassVar[str] = "detection"
    settings: DetectionSettings

    def scaled(self, scale: Scale, root: Path | None) -> ScaledSettings:
        """Smaller images and heads, fewer epochs over all images."""
        smaller = SMALLER_DETECTORS[scale.name]
        settings = replace(
            self.settings, epochs=scale.epochs, evaluate_every=scale.epochs, backbone_weights=None, **smaller
        )
        size = f"images have {smaller['min_size']} pixels on their short side"
        differences = [f"{size}, heads are narrower; all images are used"]
        if self.settings.backbone_weights:
            differences.append("the backbone starts from random weights")
        return ScaledSettings(settings, tuple(differences))

    def work(self, scale: Scale, root: Path | None) -> Work:
        """Proportional to the pixels, with the backbone's bytes per operation."""
        settings: Any = self.at(scale, root).settings
        share = settings.min_size * settings.max_size / PIXELS
        epochs = settings.epochs or RECIPE["epochs"]
        macs = MULTIPLY_ADDS[settings.network] * share
        backbone = network_size("resnet-50", 224)
        elements = macs * backbone.elements / backbone.multiply_adds
        return training_work(macs, elements, COCO_IMAGES * epochs, settings.precision)


def detector(network: str, backbone: Training | None) -> DetectorTraining:
    """A training of the paper's Tables 11 and 12.

    Args:
        network: the detector.
        backbone: training of the backbone; None for torchvision's ResNet-50, the paper's "original" rows.
    """
    settings = DetectionSettings(data="coco", network=network, method="multi-task")
    if backbone is None:
        return DetectorTraining(settings=replace(settings, backbone="resnet-50", backbone_weights="torchvision"))
    return DetectorTraining(settings=settings, dependencies={"backbone": backbone})
