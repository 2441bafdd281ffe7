"""The nearest training images in pixels, which say whether a generator has learnt images by heart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["NEAREST", "Neighbours", "nearest_images"]

NEAREST = 5
"""As many as in the paper's Figure 14."""

# Bounds the floating-point copy of 8-bit images.
CHUNK = 2000


class Neighbours(NamedTuple):
    """Of N images, the nearest first."""

    positions: Tensor
    """(N, K) among those that were searched."""
    distances: Tensor
    """(N, K) root mean squared difference of pixels in [0, 1]."""


def nearest_images(images: Tensor, among: Tensor, count: int = NEAREST) -> Neighbours:
    """The nearest of many images, all uint8 (..., C, H, W), by the sum of squared differences of pixels.

    Example:
        >>> among = torch.tensor([[0], [100], [255]], dtype=torch.uint8).view(3, 1, 1, 1)
        >>> nearest_images(torch.full((1, 1, 1, 1), 230, dtype=torch.uint8), among, count=2).positions
        tensor([[2, 1]])
    """
    wanted = images.flatten(1).double() / 255
    # By differences: an image that is there must be at distance 0.
    exact = "donot_use_mm_for_euclid_dist"
    apart = [torch.cdist(wanted, part.flatten(1).double() / 255, compute_mode=exact) for part in among.split(CHUNK)]
    distances, positions = torch.cat(apart, 1).topk(min(count, len(among)), largest=False)
    return Neighbours(positions, distances / wanted.shape[1] ** 0.5)
