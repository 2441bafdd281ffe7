"""Detectors at any scale, built on classifiers of the same reproduction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from isda.detection.recipes import RECIPE
from isda.detection.settings import Settings
from isda.reproduce.scale import Scale
from isda.reproduce.sizes import network_size
from isda.reproduce.training import Shrunk, Training
from isda.reproduce.work import Work, training_work

__all__ = ["DetectorTraining", "detector"]

IMAGES = 117_266
"""Of COCO's training set that have objects."""
MULTIPLY_ADDS = {"faster-rcnn": 209e9, "mask-rcnn": 268e9, "cascade-rcnn": 223e9}
"""Of a training step on one image of 800x1333 pixels with ResNet-50, counted; masks of 128 regions are 59e9 of it."""
PIXELS = 800 * 1333
SMALLER: dict[str, dict[str, Any]] = {
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
    settings: Settings

    def shrunk(self, scale: Scale, root: Path | None) -> Shrunk:
        """Smaller images and heads, fewer epochs over all images."""
        said = SMALLER[scale.name]
        smaller = replace(
            self.settings, epochs=scale.epochs, evaluate_every=scale.epochs, backbone_weights=None, **said
        )
        told = [f"images have {said['min_size']} pixels on their short side, heads are narrower; all images are used"]
        if self.settings.backbone_weights:
            told.append("the backbone starts from random weights")
        return Shrunk(smaller, tuple(told))

    def work(self, scale: Scale, root: Path | None) -> Work:
        """That of the published size, in proportion to the pixels, with as many bytes per operation as the backbone."""
        settings: Any = self.at(scale, root).settings
        share = 1.0 if settings.min_size is None else settings.min_size * settings.max_size / PIXELS
        epochs = settings.epochs or RECIPE.epochs
        macs = MULTIPLY_ADDS[settings.network] * share
        backbone = network_size("resnet-50", 224)
        return training_work(macs, macs * backbone.elements / backbone.multiply_adds, IMAGES * epochs)


def detector(network: str, backbone: Training | None) -> DetectorTraining:
    """A training of the paper's Tables 11 and 12.

    Args:
        network: the detector.
        backbone: the classifier that it is built on; None for torchvision's ResNet-50, the paper's "original" rows.
    """
    if backbone is None:
        own = Settings(
            data="coco", network=network, method="multi-task", backbone="resnet-50", backbone_weights="torchvision"
        )
        return DetectorTraining(settings=own)
    settings = Settings(data="coco", network=network, method="multi-task")
    return DetectorTraining(settings=settings, needs={"backbone": backbone})
