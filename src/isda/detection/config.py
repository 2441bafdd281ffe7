"""The configuration of a detection run: enough to rebuild its network without data or backbone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from isda.engine.trainer import TrainingConfig

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config(TrainingConfig):
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
