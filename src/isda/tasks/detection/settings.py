"""Settings, stored configuration and recipe (MMDetection's 1x schedule) of detection runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from isda.engine.settings import Recipe, RunSettings, learning_rate
from isda.engine.trainer import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class DetectionSettings(RunSettings):
    """Settings of a run; what is left out comes from MMDetection's 1x recipe, or is what the help says."""

    data: str | None = None
    """A folder in COCO's format, by its path or its name under the data root; coco if left out."""
    network: str | None = None
    """faster-rcnn (if left out), mask-rcnn, cascade-rcnn or cascade-mask-rcnn."""
    method: str | None = None
    """multi-task; initial weights to compare follow a colon: multi-task:backbone=runs/mine."""
    backbone: str | None = None
    """What the detector is built on: a run folder of `isda train`, a network (resnet-50 if left out), or timm:NAME."""
    backbone_weights: str | None = None
    """Its initial weights: a file, or torchvision or timm for theirs from ImageNet. A run folder has its own; the
    others are random if this is left out."""
    backbone_options: dict[str, str] = field(default_factory=dict)
    """Options of the backbone as KEY VALUE pairs, such as width 0.5."""
    batch_norm: Literal["frozen", "trained"] | None = None
    """Of the backbone; frozen if left out, but trained where the backbone's weights are random."""
    frozen_stages: int | None = None
    """The stem and so many stages keep their weights; 1 if left out, 0 where they are random or the backbone timm's."""
    min_size: int | None = None
    """Pixels of the short side of images as the network sees them; 800 if left out."""
    max_size: int | None = None
    """Most pixels of the long side; 1333 if left out."""
    fpn_channels: int | None = None
    """Channels of the feature pyramid; 256 if left out."""
    head_dim: int | None = None
    """Width of the hidden layers of the box heads; 1024 if left out."""
    anchor_scale: float | None = None
    """Side of the anchors in strides of their level; 8 if left out."""
    proposals: int | None = None
    """Regions per image that the heads look at; 1000 if left out."""
    box_samples: int | None = None
    """Regions per image that the heads learn from; 512 if left out."""
    warmup_steps: int | None = None
    """Steps in which the learning rate rises from a thousandth; 500 if left out, at most a tenth of the run."""


RECIPE = Recipe(epochs=12, batch_size=16, weight_decay=1e-4, lr=0.02, milestones=(8, 11), average_last=1)
"""The learning rate is for 16 images per step, and is scaled with the batch."""

MOST_WARMUP_STEPS = 500
WARMUP_FROM = 0.001
"""The share of the learning rate that the first step has."""

DETECTOR_OPTIONS = {
    "min_size": 800,
    "max_size": 1333,
    "fpn_channels": 256,
    "head_dim": 1024,
    "anchor_scale": 8.0,
    "proposals": 1000,
    "box_samples": 512,
}


def default_warm_up_steps(total_steps: int) -> int:
    """The steps of warm-up in a run of so many: 500, which is half a percent of 1x on COCO, but at most a tenth.

    Example:
        >>> warmup_for(87_960), warmup_for(600)
        (500, 60)
    """
    return min(MOST_WARMUP_STEPS, total_steps // 10)


def warm_up_rate(config: TrainingConfig, step: int, warmup_steps: int) -> float:
    """The learning rate of a step: the schedule's, in the first steps rising from a thousandth of it in a line.

    At step t of W: lr (1 - (1 - t / W)(1 - 0.001)).
    """
    rate = learning_rate(config, step)
    return rate if step >= warmup_steps else rate * (1 - (1 - step / warmup_steps) * (1 - WARMUP_FROM))


@dataclass(frozen=True, kw_only=True)
class DetectionConfig(TrainingConfig):
    """The settings of a run with every default filled in, and what the run needs to know of its data set."""

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    """What the annotation file calls each class."""
    backbone: str
    """The network that the detector is built on."""
    backbone_options: dict[str, Any] = field(default_factory=dict)
    backbone_weights: str = ""
    """Where its initial weights come from: a file, torchvision or timm; random if empty."""
    backbone_digest: str = ""
    """Of that file."""
    detector_options: dict[str, Any] = field(default_factory=dict)
    """What `isda.networks.detection.create` is told."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    warmup_steps: int
    train_images: int
    test_images: int
    data_digest: str = ""
    """Of sizes, names, boxes and masks: a run goes on with the data that it was started with."""

    of_method: ClassVar[tuple[str, ...]] = (
        "backbone",
        "backbone_options",
        "backbone_weights",
        "backbone_digest",
        "detector_options",
        "mean",
        "std",
    )
    told: ClassVar[dict[str, str]] = {
        "data_digest": "the data set has changed since the run was started",
        "backbone_digest": "the backbone's initial weights have changed since the run was started",
    }

    def describe(self) -> str:
        """One line about the run."""
        return (
            f"{self.network} on {self.backbone} ({self.backbone_weights or 'random weights'}), {self.data}, "
            f"{self.train_images} images, {self.epochs} epochs ({self.scale} scale), seed {self.seed}"
        )
