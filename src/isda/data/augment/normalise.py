"""Normalisation with channel means and standard deviations: the last step of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isda.data.augment.compose import check_images
from isda.data.augment.draws import Draws
from isda.devices import send

__all__ = ["Normalize"]


class Normalize:
    """(x - mean) / std per channel as float32, with x in [0, 1]; uint8 images are divided by 255 first.

    Named and called as torchvision's, like every transform here that torchvision has too.

    Args:
        mean: one value per channel, for x in [0, 1].
        std: one positive value per channel.

    Example:
        >>> white = torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)
        >>> Normalize(mean=[0.5], std=[0.25])(white).unique()
        tensor([2.])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std):
            raise ValueError(f"std must have {len(mean)} values, as many as mean, got {len(std)}")
        if min(std) <= 0:
            raise ValueError(f"std must be positive, got {list(std)}")
        self.mean = list(mean)
        self.std = list(std)

    def __call__(self, images: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C, H, W) uint8 or floating point in, float32 out."""
        check_images(images)
        if images.shape[1] != len(self.mean):
            raise ValueError(f"images must have {len(self.mean)} channels, one for each mean, got {images.shape[1]}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ValueError(f"images must be uint8 or floating point, got {images.dtype}")
        white = 255 if images.dtype == torch.uint8 else 1
        mean, std = (
            send(torch.tensor(values).mul_(white), images.device).view(-1, 1, 1) for values in (self.mean, self.std)
        )
        return images.to(torch.float32, copy=True).sub_(mean).div_(std)

    def __repr__(self) -> str:
        return f"Normalize(mean={self.mean}, std={self.std})"
