"""The configuration of a segmentation run: enough to rebuild its network without the training data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from isda.engine.trainer import TrainingConfig

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config(TrainingConfig):
    """The settings of a run with every default filled in, and what the run needs to know of its data set."""

    classes: tuple[str, ...]
    colours: tuple[str, ...] = ()
    """ "#rrggbb" of each class, where the data set has its own."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: tuple[int, ...]
    """Height and width."""
    smallest_scale: float
    largest_scale: float
    mirror: bool
    auxiliary_weight: float
    freeze_batch_norm: bool = False
    sync_batch_norm: bool = False
    multi_scale: bool = False
    pretrained: str = ""
    """The backbone's weights at the start; empty for random ones."""
    train_images: int
    test_images: int
    data_digest: str = ""
    """Of file names, sizes and class names: a run goes on with the data that it was started with."""
    network_options: dict[str, Any] = field(default_factory=dict)

    told: ClassVar[dict[str, str]] = {"data_digest": "the data set has changed since the run was started"}

    @property
    def crop_size(self) -> tuple[int, int]:
        """(height, width) of training crops."""
        height, width = self.crop
        return height, width

    def describe(self) -> str:
        """One line about the run."""
        return (
            f"{self.method} on {self.data}, {self.network}, {self.train_images} images, {self.epochs} epochs "
            f"({self.scale} scale), seed {self.seed}"
        )
