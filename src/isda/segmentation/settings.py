"""What a user can ask of a segmentation run. The text below each setting is its help on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isda.engine.settings import RunSettings

__all__ = ["Settings"]


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
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
