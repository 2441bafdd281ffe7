"""Differentiable features of generated images, as a run's network computes them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from isda.lab.data.augment import Compose, ResizeCenterCrop
from isda.lab.data.augment.compose import ConvertChannels
from isda.lab.data.normalise import as_float

if TYPE_CHECKING:
    from isda.lab.analysis.training_features import Observed


@dataclass(frozen=True)
class Encoder:
    """Differentiable features of generated images: f, and the normalisation before it.

    Args:
        normalise: images (N, C, H, W) in [0, 1], of the size that the network takes, to pixels as it takes them.
        features: those to features (N, A).
        fit: generated images in [0, 1] to that size.
    """

    normalise: Callable[[Tensor], Tensor]
    features: Callable[[Tensor], Tensor]
    fit: Callable[[Tensor], Tensor] = lambda images: images


def encoder_of_run(observed: Observed, device: torch.device | str = "cpu") -> Encoder:
    """Encoder of a run. Every normalisation (channel statistics, per image, ZCA) is differentiable.

    If the run crops its images from larger ones (ImageNet), generated images are resized to the crop's size: the
    generator makes what is seen in the crop.
    """
    trained = observed.trained
    network, dtype = trained.network.to(device), trained.config.dtype
    transforms = trained.pipeline.transforms
    crop = next((part for part in transforms if isinstance(part, ResizeCenterCrop)), None)
    rest = [part for part in transforms if not isinstance(part, ConvertChannels | ResizeCenterCrop)]
    # Copies: whitening has tensors, and other users of the run need them on their own device.
    pipeline = Compose(*(deepcopy(part).to(device) if isinstance(part, nn.Module) else part for part in rest))

    def normalise(images: Tensor) -> Tensor:
        return pipeline(as_float(images)).to(dtype)

    if crop is None:
        return Encoder(normalise, network.features)
    side, channels = crop.size, trained.config.channels
    return Encoder(normalise, network.features, lambda images: _resized(images, side, channels))


def _resized(images: Tensor, side: int, channels: int) -> Tensor:
    """(N, channels, side, side) images in [0, 1] from grey ones, or such of so many channels, of any size."""
    if images.shape[1] != channels:
        images = images.expand(-1, channels, -1, -1)
    if images.shape[2:] == (side, side):
        return images
    return nn.functional.interpolate(images, (side, side), mode="bilinear", antialias=True)
