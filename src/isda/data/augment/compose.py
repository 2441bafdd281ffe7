"""Transforms of a batch of images, and their composition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from isda.data.augment.draws import Draws

__all__ = ["Compose", "Transform", "check_images"]


class Transform(Protocol):
    """Maps N images to N images; all randomness comes from `draws`, a fresh draw for each image.

    Images are an (N, C, H, W) tensor. The transforms that bring images to one size also take a sequence of N
    (C, H, W) tensors. Transforms without randomness ignore `draws`.
    """

    def __call__(self, images: Any, draws: Draws | None = None, /) -> Tensor:
        """The transformed images."""
        ...


class Compose:
    """Applies transforms one after the other.

    Example:
        >>> from isda.data.augment import HorizontalFlip, RandomCrop
        >>> augment = Compose(RandomCrop(padding=4), HorizontalFlip())
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> augment(images, Draws.for_samples(torch.arange(8), seed=0, epoch=1)).shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(self, *transforms: Transform) -> None:
        self.transforms = transforms

    def __call__(self, images: Tensor | Sequence[Tensor], draws: Draws | None = None) -> Tensor:
        """Images after the last transform; `draws` may be left out if no transform is random."""
        for transform in self.transforms:
            images = transform(images, draws)
        if not isinstance(images, Tensor):
            got = type(images).__name__
            raise ValueError(f"images must be an (N, C, H, W) tensor after the last transform, got {got}")
        return images

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


def check_images(images: Tensor, dtype: torch.dtype | None = None) -> None:
    """A ValueError unless `images` is an (N, C, H, W) tensor (of `dtype`, where one is given)."""
    if not isinstance(images, Tensor):
        raise ValueError(f"images must be an (N, C, H, W) tensor, got {type(images).__name__}")
    if images.ndim != 4:
        raise ValueError(f"images must be an (N, C, H, W) tensor, got one of shape {tuple(images.shape)}")
    if dtype is not None and images.dtype != dtype:
        raise ValueError(f"images must be {dtype}, got {images.dtype}")
