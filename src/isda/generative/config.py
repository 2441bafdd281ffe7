"""The configuration of a run that trains a generator: enough to make its images without the training data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from isda.engine.folder.config import RunConfig

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """The settings of a run with every default filled in, and what the run needs to know of its data set."""

    batch_size: int
    optimiser: str
    """Of both players: "adam" or "rmsprop"."""
    betas: tuple[float, ...]
    """Adam's; empty for another optimiser."""
    lr: float
    weight_decay: float
    precision: str = "float32"
    ema: float | None = None
    labels: int | None
    held_out: int
    classes: tuple[str, ...]
    channels: int
    image_size: tuple[int, int] | None
    train_images: int
    test_images: int
    judge: str = ""
    """The run folder of the classifier that judges; empty for one of its own."""
    judge_sha256: str = ""
    """Of its weights."""
    data_digest: str = ""
    """Of labels, sizes and class names: a run goes on with the data that it was started with."""
    network_options: dict[str, Any] = field(default_factory=dict)

    of_method: ClassVar[tuple[str, ...]] = ("network", "network_options", "optimiser", "betas", "lr")
    told: ClassVar[dict[str, str]] = {
        "data_digest": "the data set has changed since the run was started",
        "judge_sha256": "the judge has changed since the run was started",
    }

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def describe(self) -> str:
        """One line about the run."""
        return (
            f"{self.method} on {self.data}, {self.network}, {self.train_images} images, {self.epochs} epochs "
            f"({self.scale} scale), seed {self.seed}"
        )
