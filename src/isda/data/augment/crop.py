"""Random crop of the padded image, random translation and random mirroring: any dtype, same size out as in."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isda.choices import check_choice
from isda.data.augment.compose import check_images
from isda.data.augment.draws import Draws, require_draws
from isda.devices import send

__all__ = ["HorizontalFlip", "RandomCrop", "RandomTranslation", "crop", "pad"]

_PADDING_MODES = ("constant", "reflect")


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

    Args:
        images: (N, C, H, W).
        top: (N,) first row of each window, 0 .. H - height.
        left: (N,) first column of each window, 0 .. W - width.
        height: of the windows.
        width: of the windows.
    """
    count, channels, full_height, full_width = images.shape
    pixels = images.contiguous().flatten()
    # Row k of this view is the `width` pixels that start at pixel k, so a crop is a selection of whole rows.
    runs = pixels.as_strided((max(pixels.numel() - width + 1, 0), width), (1, 1))
    planes = torch.arange(count * channels, device=images.device).view(count, channels, 1)
    rows = planes * full_height + top[:, None, None] + torch.arange(height, device=images.device)
    starts = rows * full_width + left[:, None, None]
    return runs.index_select(0, starts.flatten()).view(count, channels, height, width)


class RandomCrop:
    """Pads each side and cuts a window of the original size at a uniformly random position.

    The standard augmentation on CIFAR: 4 pixels on each side (ISDA paper, section 6.1). Zeros are black before
    `Normalize` and the mean colour after it. The authors' training code pads by reflection.

    Args:
        padding: pixels added on each side.
        padding_mode: "constant" (zeros) or "reflect".
    """

    def __init__(self, padding: int = 4, padding_mode: str = "constant") -> None:
        if padding < 0:
            raise ValueError(f"padding must be 0 or more pixels, got {padding}")
        self.padding = padding
        self.padding_mode = check_choice("padding_mode", padding_mode, _PADDING_MODES)

    def __call__(self, images: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C, H, W) in and out."""
        check_images(images)
        draws = require_draws(draws, len(images))
        offsets = send(draws.integers(2 * self.padding + 1, count=2), images.device)
        padded = pad(images, self.padding, self.padding_mode)
        return crop(padded, offsets[:, 0], offsets[:, 1], images.shape[2], images.shape[3])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(padding={self.padding}, padding_mode={self.padding_mode!r})"


class RandomTranslation(RandomCrop):
    """Shifts each image by up to `pixels` in each direction, reflecting at the border.

    The basic augmentation of the semi-supervised experiments (Laine and Aila, 2017), with 2 pixels.
    """

    def __init__(self, pixels: int = 2) -> None:
        super().__init__(padding=pixels, padding_mode="reflect")


class HorizontalFlip:
    """Mirrors each image left to right with probability 1/2."""

    def __call__(self, images: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C, H, W) in and out."""
        check_images(images)
        draws = require_draws(draws, len(images))
        mirrored = draws.integers(2)[:, 0]
        rows = torch.arange(len(images)) + mirrored * len(images)
        return torch.cat([images, images.flip(-1)]).index_select(0, send(rows, images.device))

    def __repr__(self) -> str:
        return "HorizontalFlip()"
