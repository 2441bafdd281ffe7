"""Bilinear resizing as all of these networks do it: the corners of both images lie on one another."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

__all__ = ["resize"]


def resize(maps: Tensor, size: Sequence[int]) -> Tensor:
    """(N, D, h, w) to (N, D, H, W); the maps themselves when they have that size already.

    Example:
        >>> import torch
        >>> resize(torch.tensor([[[[0.0, 2.0]]]]), (1, 3))
        tensor([[[[0., 1., 2.]]]])
    """
    if tuple(maps.shape[2:]) == tuple(size):
        return maps
    return F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=True)
