"""The configuration of a classification run: enough to rebuild its network without the training data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from isda.classification.pipelines import Seen
from isda.engine.trainer import TrainingConfig

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config(TrainingConfig):
    """The settings of a run with every default filled in, and what the run needs to know of its data set."""

    augment: str
    labels: int | None
    held_out: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int
    image_size: tuple[int, int] | None
    train_images: int
    test_images: int
    imbalance: float | None = None
    """How many times as many training images the first class has as the last; None where none was asked for."""
    class_counts: tuple[int, ...] = ()
    """Training images of each class; none where equally many of each are drawn."""
    generated: str = ""
    """The run folder of a generator, whose images are part of every batch; empty for none."""
    generated_per_batch: int = 0
    """How many of the batch_size images of a step."""
    generated_sha256: str = ""
    """Of the generator's weights."""
    data_digest: str = ""
    """Of labels, sizes and class names: a run goes on with the data that it was started with."""
    network_options: dict[str, Any] = field(default_factory=dict)
    pretrained: str = ""
    """The file of the weights that the network begins with, or "hub"; empty for random ones."""
    pretrained_sha256: str = ""
    """Of those tensors."""
    freeze: bool = False
    """Whether the classifier alone is trained."""
    input_size: int = 0
    """Side of the square that a pretrained network sees; 0: as the augmentation leaves the image."""
    input_resize: int = 0
    """The shorter side before that square is cut out, to evaluate."""
    first_pass: bool = False
    """Whether ISDA's statistics have seen every training image before the first step."""

    told: ClassVar[dict[str, str]] = {
        "data_digest": "the data set has changed since the run was started",
        "generated_sha256": "the generator has changed since the run was started",
        "pretrained_sha256": "the pretrained weights have changed since the run was started",
    }

    @property
    def seen(self) -> Seen | None:
        """How images are brought to what a pretrained network takes."""
        return Seen(self.channels, self.input_size, self.input_resize) if self.input_size else None

    def describe(self) -> str:
        """One line about the run."""
        return (
            f"{self.method} on {self.data}, {self.network}, {self.images_text}, {self.epochs} epochs "
            f"({self.scale} scale), seed {self.seed}"
        )

    @property
    def images_text(self) -> str:
        """What it learns from, in words."""
        generated = f", {self.generated_per_batch} of {self.batch_size} in a batch generated"
        tail = "" if self.imbalance is None else f" (imbalance {self.imbalance:g})"
        return f"{self.train_images} images{tail}{generated if self.generated_per_batch else ''}"
