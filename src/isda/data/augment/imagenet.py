"""Images of any size brought to one size: the random resized crop of training and the single crop of evaluation.

Resizing is torchvision's (bilinear, antialiased), image by image because sizes differ; everything after it is batched.
It is imported when images come: that takes longer than the rest of this package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isda.data.augment.draws import Draws, require_draws

__all__ = ["RandomResizedCrop", "ResizeCenterCrop"]

_ATTEMPTS = 10


def _check_each(images: Tensor | Sequence[Tensor]) -> None:
    if len(images) == 0:
        raise ValueError("images must hold at least one image, got none")
    for position, image in enumerate(images):
        if image.ndim != 3 or 0 in image.shape:
            raise ValueError(f"images[{position}] must be a (C, H, W) image, got shape {tuple(image.shape)}")
        if len(image) != len(images[0]):
            raise ValueError(
                f"images[{position}] must have {len(images[0])} channels as the first has, got {len(image)}"
            )


def _central_crop(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """The largest central window whose width / height lies within `ratio`."""
    crop_height, crop_width = height, width
    if width / height < ratio[0]:
        crop_height = round(width / ratio[0])
    elif width / height > ratio[1]:
        crop_width = round(height * ratio[1])
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


class RandomResizedCrop:
    """A window of random area and shape, resized to size x size (Szegedy et al., 2015; as in torchvision).

    Args:
        size: side of the result.
        scale: the window's area as a fraction of the image's, drawn uniformly from this range.
        ratio: width / height of the window, drawn log-uniformly from this range.
    """

    def __init__(
        self, size: int = 224, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
    ) -> None:
        for name, (low, high) in (("scale", scale), ("ratio", ratio)):
            if not 0 < low <= high:
                raise ValueError(f"{name} must be (low, high) with 0 < low <= high, got {(low, high)}")
        self.size = size
        self.scale = scale
        self.ratio = ratio

    def draw(self, draws: Draws, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
        """One (top, left, height, width) for each image of the given (height, width)."""
        # All attempts are drawn for every sample: how far a stream moves must not depend on the image.
        numbers = draws.uniform(4 * _ATTEMPTS).view(len(draws), _ATTEMPTS, 4)
        return [self._window(attempts, *size) for attempts, size in zip(numbers.tolist(), sizes, strict=True)]

    def _window(self, attempts: list[list[float]], height: int, width: int) -> tuple[int, int, int, int]:
        low, high = (math.log(bound) for bound in self.ratio)
        for area_draw, ratio_draw, top_draw, left_draw in attempts:
            area = height * width * (self.scale[0] + area_draw * (self.scale[1] - self.scale[0]))
            ratio = math.exp(low + ratio_draw * (high - low))
            crop_height, crop_width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < crop_height <= height and 0 < crop_width <= width:
                top = int(top_draw * (height - crop_height + 1))
                return top, int(left_draw * (width - crop_width + 1)), crop_height, crop_width
        return _central_crop(height, width, self.ratio)

    def __call__(self, images: Tensor | Sequence[Tensor], draws: Draws | None = None) -> Tensor:
        """N (C, H, W) images of any sizes in, (N, C, size, size) of the same dtype out."""
        from torchvision.transforms.v2.functional import resized_crop

        _check_each(images)
        draws = require_draws(draws, len(images))
        windows = self.draw(draws, [(image.shape[1], image.shape[2]) for image in images])
        size = [self.size, self.size]
        return torch.stack(
            [resized_crop(image, *window, size, antialias=True) for image, window in zip(images, windows, strict=True)]
        )

    def __repr__(self) -> str:
        return f"RandomResizedCrop({self.size}, scale={self.scale}, ratio={self.ratio})"


class ResizeCenterCrop:
    """The single evaluation crop: shorter side to `resize`, then the central size x size window.

    Args:
        resize: length of the shorter side before the crop.
        size: side of the result.
    """

    def __init__(self, resize: int = 256, size: int = 224) -> None:
        if not 0 < size <= resize:
            raise ValueError(f"size must be in 1..{resize}, not more than resize, got {size}")
        self.resize = resize
        self.size = size

    def __call__(self, images: Tensor | Sequence[Tensor], draws: Draws | None = None) -> Tensor:
        """N (C, H, W) images of any sizes in, (N, C, size, size) of the same dtype out."""
        from torchvision.transforms.v2.functional import center_crop, resize

        _check_each(images)
        resized = (resize(image, [self.resize], antialias=True) for image in images)
        return torch.stack([center_crop(image, [self.size]) for image in resized])

    def __repr__(self) -> str:
        return f"ResizeCenterCrop({self.resize}, {self.size})"
