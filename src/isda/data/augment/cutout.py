"""Cutout: hide a random square of each image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isda.data.augment.compose import check_images
from isda.data.augment.draws import Draws, require_draws
from isda.devices import send

__all__ = ["Cutout", "cutout"]


def cutout(images: Tensor, row: Tensor, column: Tensor, length: int, fill: float | Sequence[float] = 0) -> Tensor:
    """Fill the square of side `length` around pixel (row, column) of each image, clipped at the border.

    The square covers rows row - length // 2 up to, not including, row - length // 2 + length; columns alike.

    Args:
        images: (N, C, H, W).
        row: (N,) centre of each square.
        column: (N,) centre of each square.
        length: side in pixels.
        fill: one value, or one per channel, in the units of `images`.
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


class Cutout:
    """Hides a square with its centre uniform over the image's pixels (DeVries and Taylor, 2017).

    Args:
        length: side of the square; DeVries and Taylor take 16 on CIFAR-10 and 8 on CIFAR-100.
        fill: value (or one per channel) inside the square. 0 is black before `Normalize`, the mean colour after it.
    """

    def __init__(self, length: int = 16, fill: float | Sequence[float] = 0) -> None:
        if length < 1:
            raise ValueError(f"length must be at least 1 pixel, got {length}")
        self.length = length
        self.fill = fill

    def __call__(self, images: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C, H, W) in and out."""
        check_images(images)
        if isinstance(self.fill, Sequence) and len(self.fill) != images.shape[1]:
            raise ValueError(f"fill must be one value per channel ({images.shape[1]}), got {len(self.fill)}")
        draws = require_draws(draws, len(images))
        row, column = (send(draws.integers(size)[:, 0], images.device) for size in images.shape[-2:])
        return cutout(images, row, column, self.length, self.fill)

    def __repr__(self) -> str:
        return f"Cutout(length={self.length}, fill={self.fill})"
