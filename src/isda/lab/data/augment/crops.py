"""Crops, flips, translation, Cutout, resizing to one size, and the pipelines of the paper's experiments.

Resizing is torchvision's (bilinear, antialiased) and runs per image. Where the paper leaves a detail open, the
pipeline's docstring states our choice and its source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from isda.lab.choices import check_choice
from isda.lab.data.augment.compose import Compose, Normalize, Transform, check_images
from isda.lab.data.augment.draws import Draws, require_draws
from isda.lab.devices import send


def _reflect(images: Tensor, padding: int, dim: int) -> Tensor:
    """Continue the images on both sides of one dimension with their mirror image, edge pixel not repeated."""
    before = images.narrow(dim, 1, padding).flip(dim)
    after = images.narrow(dim, images.shape[dim] - 1 - padding, padding).flip(dim)
    return torch.cat([before, images, after], dim)


def pad(images: Tensor, padding: int, padding_mode: str = "constant") -> Tensor:
    """Pad all four sides with zeros ("constant") or the mirror image without its edge ("reflect"); any dtype."""
    if padding_mode == "constant":
        return F.pad(images, (padding, padding, padding, padding))
    height, width = images.shape[-2:]
    if padding >= min(height, width):
        raise ValueError(f"padding must be less than the image's size {height}x{width} to reflect, got {padding}")
    return _reflect(_reflect(images, padding, 2), padding, 3)


def crop(images: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """Cut a height x width window out of each image.

    ``top`` and ``left`` (N,) are the first row and column of each window.
    """
    count, channels, full_height, full_width = images.shape
    pixels = images.contiguous().flatten()
    # Row k of this view is the `width` pixels that start at pixel k, so a crop is a selection of whole rows.
    runs = pixels.as_strided((max(pixels.numel() - width + 1, 0), width), (1, 1))
    planes = torch.arange(count * channels, device=images.device).view(count, channels, 1)
    rows = planes * full_height + top[:, None, None] + torch.arange(height, device=images.device)
    starts = rows * full_width + left[:, None, None]
    return runs.index_select(0, starts.flatten()).view(count, channels, height, width)


@dataclass(eq=False)
class RandomCrop:
    """Pads each side and cuts a window of the original size at a uniformly random position.

    The standard augmentation on CIFAR: 4 pixels on each side (ISDA paper, section 6.1). Zeros are black before
    `Normalize` and the mean colour after it. The authors' training code pads by reflection.

    Args:
        padding: pixels added on each side.
        padding_mode: "constant" (zeros) or "reflect".
    """

    padding: int = 4
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be 0 or more pixels, got {self.padding}")
        check_choice("padding_mode", self.padding_mode, ("constant", "reflect"))

    def __call__(self, images: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C, H, W) in and out."""
        check_images(images)
        draws = require_draws(draws, len(images))
        offsets = send(draws.integers(2 * self.padding + 1, count=2), images.device)
        padded = pad(images, self.padding, self.padding_mode)
        return crop(padded, offsets[:, 0], offsets[:, 1], images.shape[2], images.shape[3])


class RandomTranslation(RandomCrop):
    """Shifts each image by up to `pixels` in each direction, reflecting at the border.

    The basic augmentation of the semi-supervised experiments (Laine and Aila, 2017), with 2 pixels.
    """

    def __init__(self, pixels: int = 2) -> None:
        super().__init__(padding=pixels, padding_mode="reflect")


@dataclass(eq=False)
class HorizontalFlip:
    """Mirrors each image left to right with probability 1/2."""

    def __call__(self, images: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C, H, W) in and out."""
        check_images(images)
        draws = require_draws(draws, len(images))
        mirrored = draws.integers(2)[:, 0]
        rows = torch.arange(len(images)) + mirrored * len(images)
        return torch.cat([images, images.flip(-1)]).index_select(0, send(rows, images.device))


def cutout(images: Tensor, row: Tensor, column: Tensor, length: int, fill: float | Sequence[float] = 0) -> Tensor:
    """Fill the square of side `length` around pixel (row, column) of each image, clipped at the border.

    It begins ``length // 2`` pixels above and left of (row, column). ``fill`` is one value, or one per channel.
    """
    height, width = images.shape[-2:]
    below = torch.arange(height, device=images.device) - (row[:, None] - length // 2)
    right = torch.arange(width, device=images.device) - (column[:, None] - length // 2)
    hidden_rows = (below >= 0) & (below < length)
    hidden_columns = (right >= 0) & (right < length)
    hidden = (hidden_rows[:, :, None] & hidden_columns[:, None, :])[:, None]
    if isinstance(fill, Sequence):
        return torch.where(hidden, send(fill, images.device, images.dtype).view(-1, 1, 1), images)
    return images.masked_fill(hidden, fill)


@dataclass(eq=False)
class Cutout:
    """Hides a square with its centre uniform over the image's pixels (DeVries and Taylor, 2017).

    Args:
        length: side of the square; DeVries and Taylor take 16 on CIFAR-10 and 8 on CIFAR-100.
        fill: value (or one per channel) inside the square. 0 is black before `Normalize`, the mean colour after it.
    """

    length: int = 16
    fill: float | Sequence[float] = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1 pixel, got {self.length}")

    def __call__(self, images: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C, H, W) in and out."""
        check_images(images)
        draws = require_draws(draws, len(images))
        row, column = (send(draws.integers(size)[:, 0], images.device) for size in images.shape[-2:])
        return cutout(images, row, column, self.length, self.fill)


_ATTEMPTS = 10


def _check_each(images: Tensor | Sequence[Tensor]) -> None:
    for position, image in enumerate(images):
        if image.ndim != 3 or 0 in image.shape or len(image) != len(images[0]):
            raise ValueError(
                f"images[{position}] must be (C, H, W) with the channels of the first, got shape {tuple(image.shape)}"
            )


def _central_crop(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """The largest central window whose width / height lies within `ratio`."""
    crop_height, crop_width = height, width
    if width / height < ratio[0]:
        crop_height = round(width / ratio[0])
    elif width / height > ratio[1]:
        crop_width = round(height * ratio[1])
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


@dataclass(eq=False)
class RandomResizedCrop:
    """A window of random area and shape, resized to size x size (Szegedy et al., 2015; as in torchvision).

    Args:
        size: side of the result.
        scale: the window's area as a fraction of the image's, drawn uniformly from this range.
        ratio: width / height of the window, drawn log-uniformly from this range.
    """

    size: int = 224
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high:
                raise ValueError(f"{name} must be (low, high) with 0 < low <= high, got {(low, high)}")

    def window(self, attempts: list[list[float]], height: int, width: int) -> tuple[int, int, int, int]:
        """(top, left, height, width) in an image, of the first attempt (area, ratio, top, left) that fits."""
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
        # All attempts are drawn for every sample: how far a stream moves must not depend on the image.
        numbers = draws.uniform(4 * _ATTEMPTS).view(len(draws), _ATTEMPTS, 4).tolist()
        windows = [self.window(own, *image.shape[1:]) for own, image in zip(numbers, images, strict=True)]
        size = [self.size, self.size]
        return torch.stack(
            [resized_crop(image, *window, size, antialias=True) for image, window in zip(images, windows, strict=True)]
        )


@dataclass(eq=False)
class ResizeCenterCrop:
    """The single evaluation crop: shorter side to `resize`, then the central size x size window.

    Args:
        resize: length of the shorter side before the crop.
        size: side of the result.
    """

    resize: int = 256
    size: int = 224

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.resize:
            raise ValueError(f"size must be in 1..{self.resize}, not more than resize, got {self.size}")

    def __call__(self, images: Tensor | Sequence[Tensor], draws: Draws | None = None) -> Tensor:
        """N (C, H, W) images of any sizes in, (N, C, size, size) of the same dtype out."""
        from torchvision.transforms.v2.functional import center_crop, resize

        _check_each(images)
        resized = (resize(image, [self.resize], antialias=True) for image in images)
        return torch.stack([center_crop(image, [self.size]) for image in resized])


def crop_flip(
    mean: Sequence[float], std: Sequence[float], extra: Sequence[Transform] = (), padding_mode: str = "constant"
) -> Compose:
    """CIFAR training: pad 4, random crop, flip, then `extra` on the uint8 images, then normalise.

    The paper says "4 pixels are padded at each side", not with what; the authors' code reflects the image.
    Its table of complementary augmentations names Cutout, RandAugment and AutoAugment without their settings:

    - `extra=[Cutout(16)]`: DeVries and Taylor's size for CIFAR-10 (8 for CIFAR-100); 16 for both in the authors' code.
    - `extra=[AutoAugment("cifar10"), Cutout(16)]`: Cubuk et al. (2019) let Cutout 16 follow the policy, and the
      authors' code does so too; the policy found on CIFAR-10 serves CIFAR-100.
    - `extra=[RandAugment()]`: our choice of torchvision's defaults, two operations at magnitude 9 of 31. Cubuk et al.
      (2020) search both for each network and data set; the authors' code has no RandAugment.

    Example:
        >>> from isda.lab.data.augment import Cutout
        >>> crop_flip([0.5], [0.2], extra=[Cutout(16)]).transforms[2]
        Cutout(length=16, fill=0)
    """
    return Compose(RandomCrop(4, padding_mode), HorizontalFlip(), *extra, Normalize(mean, std))


def translate_flip(flip: bool = True) -> Compose:
    """Semi-supervised training: random 2-pixel translation, then (CIFAR, not SVHN) random flip; the dtype stays.

    The paper's "random 2x2 translation": up to 2 pixels each way as in Laine and Aila (2017); that the border is
    reflected is ours. The images are whitened (CIFAR) or normalised beforehand, so there is no normalisation here.
    """
    return Compose(RandomTranslation(2), HorizontalFlip()) if flip else Compose(RandomTranslation(2))


def imagenet_training(mean: Sequence[float], std: Sequence[float], extra: Sequence[Transform] = ()) -> Compose:
    """ImageNet training: random resized crop to 224, flip, then `extra` on the uint8 images, then normalise.

    The paper points to the settings of earlier papers, some of which shift colours too; the authors' code has the crop
    and the flip only, and so has this.
    """
    return Compose(RandomResizedCrop(224), HorizontalFlip(), *extra, Normalize(mean, std))


def imagenet_evaluation(mean: Sequence[float], std: Sequence[float]) -> Compose:
    """ImageNet single-crop evaluation: shorter side to 256, central 224 x 224, normalise. Needs no draws."""
    return Compose(ResizeCenterCrop(256, 224), Normalize(mean, std))
