"""Shear, translation and rotation of images with a parameter per sample, nearest neighbour.

Conventions are those of torchvision's RandAugment and AutoAugment. Each operation is an affine map from output to
input pixel coordinates, measured from the image centre: x_in = m00 x + m01 y + m02, y_in = m10 x + m11 y + m12.
So all of them, mixed, are one resampling of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isda.devices import send

__all__ = ["Fill", "affine_nearest", "rotate", "shear_x", "shear_y", "translate_x", "translate_y"]

Fill = int | Sequence[int]
"""Colour outside the image: one grey value or one value per channel, 0 .. 255."""

_MOST_PIXELS = 1 << 24  # positions are counted in float32


def affine_nearest(images: Tensor, maps: Tensor, fill: Fill = 0) -> Tensor:
    """Resample each image at the nearest input pixel of its own affine map.

    The coordinates go through the same float32 steps as torchvision's, so that pixels which fall exactly between two
    input pixels are rounded the same way.

    Args:
        images: (N, C, H, W), any dtype.
        maps: (N, 2, 3), output to input coordinates measured from the centre, in pixels, x before y.
        fill: value of pixels whose source lies outside the image.

    Example:
        >>> ramp = torch.arange(4, dtype=torch.uint8).view(1, 1, 1, 4)
        >>> affine_nearest(ramp, translate_x(torch.tensor([1.0]), 1, 4), fill=9).flatten().tolist()
        [9, 0, 1, 2]
    """
    count, channels, height, width = images.shape
    if (height + 2) * (width + 2) > _MOST_PIXELS:
        raise ValueError(f"images must have fewer than {_MOST_PIXELS} pixels each, got {height}x{width}")
    size = send([width, height], images.device, torch.float32).view(2, 1, 1)
    x = torch.arange(width, dtype=torch.float32, device=images.device) - (width - 1) / 2
    y = torch.arange(height, dtype=torch.float32, device=images.device)[:, None] - (height - 1) / 2
    normalised = maps.to(torch.float32)[..., None, None] / (0.5 * size[:, None])
    source = x * normalised[:, :, 0] + y * normalised[:, :, 1]
    source.add_(normalised[:, :, 2]).add_(1).mul_(0.5 * size).sub_(0.5).round_()
    # A border of one pixel in the fill colour stands for everything outside.
    column, row = torch.minimum(source.clamp_(min=-1), size, out=source).unbind(1)
    position = row.mul_(width + 2).add_(column).add_(width + 3).to(torch.int64).view(count, 1, -1)
    border = send(fill, images.device, images.dtype).view(1, -1, 1, 1)
    padded = border.expand(count, channels, height + 2, width + 2).contiguous()
    padded[:, :, 1:-1, 1:-1] = images
    return padded.flatten(2).gather(2, position.expand(-1, channels, -1)).view_as(images)


def _maps(entries: dict[tuple[int, int], Tensor]) -> Tensor:
    """(N, 2, 3) identity maps with some entries replaced by (N,) values."""
    first = next(iter(entries.values()))
    maps = torch.eye(2, 3, dtype=torch.float64, device=first.device).repeat(len(first), 1, 1)
    for (row, column), value in entries.items():
        maps[:, row, column] = value
    return maps


def shear_x(slope: Tensor, height: int, width: int) -> Tensor:
    """Slide each row by slope (N,) times its distance from the top edge: x_in = x + slope * (y + height / 2)."""
    return _maps({(0, 1): slope, (0, 2): slope * (0.5 * height)})


def shear_y(slope: Tensor, height: int, width: int) -> Tensor:
    """Slide each column by slope (N,) times its distance from the left edge: y_in = y + slope * (x + width / 2)."""
    return _maps({(1, 0): slope, (1, 2): slope * (0.5 * width)})


def translate_x(pixels: Tensor, height: int, width: int) -> Tensor:
    """Move right by pixels (N,), cut to whole pixels towards zero."""
    return _maps({(0, 2): -pixels.trunc()})


def translate_y(pixels: Tensor, height: int, width: int) -> Tensor:
    """Move down by pixels (N,), cut to whole pixels towards zero."""
    return _maps({(1, 2): -pixels.trunc()})


def rotate(degrees: Tensor, height: int, width: int) -> Tensor:
    """Turn counter-clockwise about the centre by degrees (N,)."""
    angle = torch.deg2rad(degrees.to(torch.float64))
    cosine, sine = angle.cos(), angle.sin()
    return _maps({(0, 0): cosine, (0, 1): -sine, (1, 0): sine, (1, 1): cosine})
