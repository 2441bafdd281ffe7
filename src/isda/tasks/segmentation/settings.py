"""Settings, stored configuration and recipe of segmentation runs.

The paper says no more than "the standard hyper-parameters". The recipe is that of the authors' code on Cityscapes:
crops of 769, batches of 8, 40,000 steps at lr 0.01 (1 - t / T)^0.9 with momentum 0.9 (not Nesterov's),
weight decay 5e-4, the auxiliary loss at 0.4, lambda_0 from {1, 2.5, 5, 7.5, 10} with 7.5 as the default,
diagonal covariances (the paper says so too), bilinear upsampling with aligned corners.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from isda.engine.settings import Recipe, RunSettings
from isda.engine.trainer import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class SegmentationSettings(RunSettings):
    """Settings of a run; what is left out comes from the authors' code, or is what the help says."""

    data: str | None = None
    """cityscapes, camvid, or a folder: Cityscapes' layout, CamVid's, or images/ and labels/ (docs/segmentation.md)."""
    network: str | None = None
    """pspnet-resnet-101 (if left out), or pspnet- or deeplab-v3- with resnet-18, -34, -50 or -101."""
    method: str | None = None
    """cross-entropy, isda (if left out) or isda-tilted; options follow a colon: isda:lambda_0=5,covariance=full. Each
    has ohem=true, for the hard pixels only. A class of your own: package.module.Class:key=value (docs/extend.md)."""
    lambda_0: float | None = None
    """ISDA's strength at the end of training; 7.5 if left out."""
    evaluate_on: Literal["validation", "test"] | None = None
    """The part that judges; validation if left out, where there is one."""
    multi_scale: bool = False
    """At the end measure also with images at 0.75, 1, 1.25 and 1.5 times their size, and these mirrored as well."""
    crop: str | None = None
    """Size of training crops, SIDE or HEIGHTxWIDTH; 769 if left out."""
    smallest_scale: float | None = None
    """Images are resized by a random factor from this one (0.5 if left out) ..."""
    largest_scale: float | None = None
    """... to this one (2 if left out), before they are cropped."""
    mirror: bool = True
    """Mirror every other image."""
    width: float | None = None
    """Factor on the channels of backbone and heads."""
    output_stride: int | None = None
    """Pixels of the image per position of the features: 8 (if left out), 16 or 32."""
    stem: Literal["deep", "torchvision"] | None = None
    """The backbone's first layers: three 3x3 convolutions (deep), or one of 7x7, which torchvision's weights need."""
    pretrained: str | None = None
    """Weights of the backbone: torchvision, or a file under its names."""
    dropout: float | None = None
    """Rate at which channels of features are dropped; 0.1 if left out."""
    auxiliary_weight: float | None = None
    """Weight of the auxiliary head's loss, 0.4 if left out; there is no such head at 0."""
    freeze_batch_norm: bool = False
    """Keep batch normalisation at its running figures, those of the pretrained weights."""
    sync_batch_norm: bool = False
    """Share batch normalisation among processes, each on a GPU of its own."""


# How the authors' code trains on Cityscapes; the paper says no more than "the standard hyper-parameters".
#
# All of this is from that code, not from the paper: crops of 769, batches of 8, 40,000 steps at lr 0.01 (1 - t / T)^0.9
# with momentum 0.9 (not Nesterov's) and weight decay 5e-4, the auxiliary loss at 0.4, lambda_0 from {1, 2.5, 5, 7.5,
# 10} with 7.5 as the default, diagonal covariances (these the paper says too), bilinear upsampling with aligned
# corners.

STEPS = 40_000
BATCH_SIZE = 8
CROP = 769
AUXILIARY_WEIGHT = 0.4
NETWORK = "pspnet-resnet-101"
SCALE_RANGE = (0.5, 2.0)
"""Ours, the range that most recipes have; the toolbox below the authors' code draws from 0.7, 0.8, ... 2.1."""


def recipe_for(steps_per_epoch: int) -> Recipe:
    """The recipe in epochs of so many steps: as many as come nearest to 40,000 steps.

    Example:
        >>> recipe_for(2975 // 8).epochs
        108
    """
    return Recipe(
        epochs=max(1, round(STEPS / steps_per_epoch)),
        batch_size=BATCH_SIZE,
        weight_decay=5e-4,
        lr=0.01,
        schedule="poly",
        average_last=1,
        covariance="diagonal",
        lambda_0=7.5,
        strengths=(1.0, 2.5, 5.0, 7.5, 10.0),
    )


@dataclass(frozen=True, kw_only=True)
class SegmentationConfig(TrainingConfig):
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
