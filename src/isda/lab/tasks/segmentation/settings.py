"""Settings, stored configuration and recipe of segmentation runs.

The paper says no more than "the standard hyper-parameters". The recipe is that of the authors' code on Cityscapes:
crops of 769, batches of 8, 40,000 steps at lr 0.01 (1 - t / T)^0.9 with momentum 0.9 (not Nesterov's),
weight decay 5e-4, the auxiliary loss at 0.4, lambda_0 from {1, 2.5, 5, 7.5, 10} with 7.5 as the default,
diagonal covariances (the paper says so too), bilinear upsampling with aligned corners.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from isda.lab.engine.config import TrainingConfig
from isda.lab.engine.settings import (
    Auto,
    Recipe,
    TrainingSettings,
    auto,
    stored_in,
)


@dataclass(frozen=True, kw_only=True)
class SegmentationSettings(TrainingSettings):
    """Settings of a run; what is not given comes from the authors' code, or is what the help says."""

    data: Auto[str] = auto()
    """cityscapes, camvid, or a folder: Cityscapes' layout, CamVid's, or images/ and labels/."""
    network: Auto[str] = auto("pspnet-resnet-101")
    """pspnet- or deeplab-v3- with resnet-18, -34, -50 or -101."""
    method: Auto[str] = auto("isda")
    """cross-entropy, isda or isda-tilted; options follow a colon: isda:lambda_0=5,covariance=full. Each
    has ohem=true, for the hard pixels only. A class of your own: package.module.Class:key=value."""
    lambda_0: float | None = stored_in("method_options")
    """ISDA's strength at the end of training."""
    evaluate_on: Literal["validation", "test"] | None = stored_in("evaluated_on")
    """The part that the run is evaluated on."""
    window: str | None = None
    """Evaluate by sliding windows of this size, SIDE or HEIGHTxWIDTH, two thirds of it apart, and average logits, not
    probabilities, as the authors' code does (769)."""
    multi_scale: bool = False
    """At the end measure also with images at 0.75, 1, 1.25 and 1.5 times their size, and these mirrored as well."""
    crop: str = "769"
    """Size of training crops, SIDE or HEIGHTxWIDTH."""
    # The range is ours, that of most recipes; the toolbox below the authors' code draws from 0.7, 0.8, ... 2.1.
    smallest_scale: float = 0.7
    """Images are resized by a random factor from this one ..."""
    largest_scale: float = 2.1
    """... to this one, before they are cropped."""
    mirror: bool = True
    """Mirror every other image."""
    width: float = 1.0
    """Factor on the channels of backbone and heads."""
    output_stride: int = 8
    """Pixels of the image per position of the features: 8, 16 or 32."""
    stem: Auto[Literal["deep", "torchvision"]] = auto()
    """The backbone's first layers: three 3x3 convolutions (deep), or one of 7x7, which torchvision's weights need."""
    pretrained: str | None = None
    """Weights of the backbone: torchvision, or a file under its names."""
    dropout: float = 0.1
    """Rate at which channels of features are dropped."""
    auxiliary_weight: float = 0.4
    """Weight of the auxiliary head's loss; there is no such head at 0."""
    freeze_batch_norm: bool = False
    """Keep batch normalisation at its running figures, those of the pretrained weights."""
    sync_batch_norm: bool = False
    """Share batch normalisation among processes, as the authors' code does."""

    method_summaries: ClassVar[Mapping[str, str]] = {
        "cross-entropy": "cross-entropy of every pixel, the baseline",
        "isda": "the published bound for every pixel",
        "isda-tilted": "the tilted bound for every pixel",
    }

    def check(self) -> None:
        """Raise a ValueError if a setting is out of range."""
        super().check()
        crop_size(self.crop)
        if self.window is not None:
            crop_size(self.window, "window")
        if not 0.01 <= self.smallest_scale <= self.largest_scale <= 100:
            raise ValueError(
                "smallest_scale and largest_scale must be in order, from 0.01 to 100, "
                f"got {self.smallest_scale} and {self.largest_scale}"
            )
        if not 0 <= self.auxiliary_weight <= 100:
            raise ValueError(f"auxiliary_weight must lie in 0..100, got {self.auxiliary_weight}")


def crop_size(text: str, name: str = "crop") -> tuple[int, int]:
    """Height and width from SIDE or HEIGHTxWIDTH; messages call them ``name``.

    Example:
        >>> crop_size("769"), crop_size("180x240")
        ((769, 769), (180, 240))
    """
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    size = (0, 0) if match is None else (int(match[1]), int(match[2] or match[1]))
    if min(size) < 1:
        raise ValueError(f"{name} must be a number of pixels, SIDE or HEIGHTxWIDTH, got {text!r}")
    return size


STEPS = 40_000
BATCH_SIZE = 8


def recipe_for(steps_per_epoch: int) -> Recipe:
    """The recipe in epochs of so many steps: as many as come nearest to 40,000 steps.

    Example:
        >>> recipe_for(2975 // 8)["epochs"]
        108
    """
    return Recipe(
        {
            "epochs": max(1, round(STEPS / steps_per_epoch)),
            "batch_size": BATCH_SIZE,
            "weight_decay": 5e-4,
            "lr": 0.01,
            "nesterov": False,
            "schedule": "poly",
            "average_last": 1,
        },
        {"isda": {"lambda_0": 7.5, "covariance": "diagonal", "bound": "jensen"}},
        {"isda": {"lambda_0": (1.0, 2.5, 5.0, 7.5, 10.0)}},
    )


@dataclass(frozen=True, kw_only=True)
class SegmentationConfig(SegmentationSettings, TrainingConfig):
    """The resolved settings of a run, and facts of its data set."""

    classes: tuple[str, ...]
    colours: tuple[str, ...] = ()
    """ "#rrggbb" of each class, where the data set has its own."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_images: int
    test_images: int
    data_digest: str = ""
    """Of file names, sizes and class names: a run is resumed only with the data that it was started with."""

    change_messages: ClassVar[dict[str, str]] = {"data_digest": "the data set has changed since the run was started"}

    @property
    def crop_size(self) -> tuple[int, int]:
        """(height, width) of training crops."""
        return crop_size(self.crop)

    @property
    def window_size(self) -> tuple[int, int] | None:
        """(height, width) of the windows of evaluation; None for whole images."""
        return None if self.window is None else crop_size(self.window, "window")

    @property
    def network_options(self) -> dict[str, Any]:
        """The arguments of `isda.lab.networks.segmentation.create` that are settings."""
        names = ("width", "output_stride", "stem", "dropout")
        return {name: getattr(self, name) for name in names} | {"auxiliary": self.auxiliary_weight > 0}

    def describe(self) -> str:
        """One line about the run."""
        return (
            f"{self.method} on {self.data}, {self.network}, {self.train_images} images, {self.epochs} epochs "
            f"({self.scale} scale), seed {self.seed}"
        )
