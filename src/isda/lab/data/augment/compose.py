"""The transform interface, composition, normalisation, and conversion between grey and colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from isda.lab.data.augment.draws import Draws
from isda.lab.devices import send


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
        >>> from isda.lab.data.augment import HorizontalFlip, RandomCrop
        >>> augment = Compose(RandomCrop(padding=4), HorizontalFlip())
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> augment(images, Draws.for_samples(torch.arange(8), seed=0, epoch=1)).shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(self, *transforms: Transform) -> None:
        self.transforms = transforms

    def __call__(self, images: Tensor | Sequence[Tensor], draws: Draws | None = None) -> Tensor:
        """Images after the last transform; `draws` may be None if no transform is random."""
        for transform in self.transforms:
            images = transform(images, draws)
        return check_images(images)

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


def check_images(images: Any, dtype: torch.dtype | None = None) -> Tensor:
    """The images, which must be an (N, C, H, W) tensor (of `dtype`, where one is given)."""
    if not isinstance(images, Tensor) or images.ndim != 4 or dtype not in (None, images.dtype):
        kind = "" if dtype is None else f" of {dtype}"
        got = f"{images.dtype} of shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"images must be an (N, C, H, W) tensor{kind}, got {got}")
    return images


@dataclass(eq=False)
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

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ValueError(f"std must be positive, and have a value for each mean, got {self.mean} and {self.std}")
        self.mean, self.std = list(self.mean), list(self.std)

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


LUMA = (0.299, 0.587, 0.114)
"""ITU-R BT.601, in full precision; the operations of RandAugment and AutoAugment have torchvision's rounded weights."""


def convert_channels(images: Tensor, channels: int) -> Tensor:
    """Grey images (N, 1, H, W) as colour, or colour ones as grey by their luminance (ITU-R BT.601), still uint8.

    Example:
        >>> convert_channels(torch.full((1, 3, 1, 1), 100, dtype=torch.uint8), 1)
        tensor([[[[100]]]], dtype=torch.uint8)
    """
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1)
    if images.shape[1] == 3 and channels == 1:
        weights = torch.tensor(LUMA, device=images.device).view(1, 3, 1, 1)
        return (images * weights).sum(1, keepdim=True).round().to(torch.uint8)
    raise ValueError(
        f"images must have 1, 3 or the {channels} channels that the backbone takes, got {images.shape[1]} channels"
    )


@dataclass(eq=False)
class ConvertChannels:
    """`convert_channels` to ``channels`` as the first transform, for a batch or a sequence of images."""

    channels: int

    def __call__(self, images: Tensor | Sequence[Tensor], draws: Draws | None = None) -> Any:
        """N images of any sizes in, the same with so many channels out."""
        if isinstance(images, Tensor):
            return convert_channels(images, self.channels)
        return [convert_channels(image.unsqueeze(0), self.channels)[0] for image in images]
