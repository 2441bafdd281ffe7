"""Settings, stored configuration and recipe (MMDetection's 1x schedule) of detection runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from isda.lab.choices import check_choice
from isda.lab.engine.config import TrainingConfig
from isda.lab.engine.settings import (
    AUTO,
    Auto,
    Recipe,
    TrainingSettings,
    auto,
    stored_in,
)


@dataclass(frozen=True, kw_only=True)
class DetectionSettings(TrainingSettings):
    """Settings of a run; what is not given comes from MMDetection's 1x recipe, or is what the help says."""

    data: Auto[str] = auto()
    """A folder in COCO's format, by its path or its name under the data root."""
    network: Auto[str] = auto("faster-rcnn")
    """faster-rcnn, mask-rcnn, cascade-rcnn or cascade-mask-rcnn."""
    method: Auto[str] = auto("multi-task")
    """multi-task; initial weights to compare follow a colon: multi-task:backbone=runs/mine."""
    warm_up: str | None = stored_in("warm_up_steps")
    """Let the learning rate rise from a thousandth over so many epochs, 2 or 0.5, or steps: 100steps."""
    backbone: Auto[str] = auto("resnet-50")
    """What the detector is built on: a run folder of `isda train`, a network, or timm:NAME."""
    backbone_weights: str | None = None
    """Its initial weights: a file, or torchvision or timm for theirs from ImageNet."""
    backbone_options: dict[str, str] = field(default_factory=dict)
    """Options of the backbone as KEY VALUE pairs, such as width 0.5."""
    batch_norm: Auto[Literal["frozen", "trained"]] = auto()
    """Of the backbone."""
    frozen_stages: Auto[int] = auto()
    """The stem and so many stages keep their weights."""
    min_size: int = 800
    """Pixels of the short side of images as the network sees them."""
    max_size: int = 1333
    """Most pixels of the long side."""
    fpn_channels: int = 256
    """Channels of the feature pyramid."""
    head_dim: int = 1024
    """Width of the hidden layers of the box heads."""
    anchor_scale: float = 8.0
    """Side of the anchors in strides of their level."""
    proposals: int = 1000
    """Regions per image that the heads look at."""
    box_samples: int = 512
    """Regions per image that the heads learn from."""

    method_summaries: ClassVar[Mapping[str, str]] = {"multi-task": "the losses of the detector's heads together"}

    def check(self) -> None:
        """Raise a ValueError if a setting is out of range."""
        super().check()
        if self.compile:
            raise ValueError("compile is not supported for detectors, whose shapes differ from image to image")
        if self.batch_norm is not AUTO:
            check_choice("batch_norm", self.batch_norm, ("frozen", "trained"))


RECIPE = Recipe(
    {
        "epochs": 12,
        "batch_size": 16,
        "weight_decay": 1e-4,
        "lr": 0.02,
        "milestones": (8, 11),
        "nesterov": False,
        "warm_up_from": 0.001,
        "average_last": 1,
    }
)
"""The learning rate is for 16 images per step, and is scaled with the batch."""

MAX_WARM_UP_STEPS = 500


def default_warm_up_steps(total_steps: int) -> int:
    """The steps of warm-up in a run of so many: 500, which is half a percent of 1x on COCO, but at most a tenth.

    Example:
        >>> default_warm_up_steps(87_960), default_warm_up_steps(600)
        (500, 60)
    """
    return min(MAX_WARM_UP_STEPS, total_steps // 10)


@dataclass(frozen=True, kw_only=True)
class DetectionConfig(DetectionSettings, TrainingConfig):
    """The resolved settings of a run, and facts of its data set and backbone."""

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    """What the annotation file calls each class."""
    backbone_options: dict[str, Any] = field(default_factory=dict)
    backbone_digest: str = ""
    """Of the file of initial weights."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_images: int
    test_images: int
    data_digest: str = ""
    """Of sizes, names, boxes and masks: a run is resumed only with the data that it was started with."""

    of_method: ClassVar[tuple[str, ...]] = (
        "backbone",
        "backbone_options",
        "backbone_weights",
        "backbone_digest",
        "batch_norm",
        "frozen_stages",
        "mean",
        "std",
    )
    change_messages: ClassVar[dict[str, str]] = {
        "data_digest": "the data set has changed since the run was started",
        "backbone_digest": "the backbone's initial weights have changed since the run was started",
    }

    @property
    def detector_options(self) -> dict[str, Any]:
        """The arguments of `isda.lab.networks.detection.create` that are settings."""
        names = ("min_size", "max_size", "fpn_channels", "head_dim", "anchor_scale", "proposals", "box_samples")
        options = {name: getattr(self, name) for name in (*names, "frozen_stages")}
        return options | {"freeze_batch_norm": self.batch_norm == "frozen"}

    def describe(self) -> str:
        """One line about the run."""
        return (
            f"{self.network} on {self.backbone} ({self.backbone_weights or 'random weights'}), {self.data}, "
            f"{self.train_images} images, {self.epochs} epochs ({self.scale} scale), seed {self.seed}"
        )
