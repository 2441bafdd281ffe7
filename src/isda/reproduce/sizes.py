"""What a network costs, and how narrow it must be: counted once at its full width, the rest in proportion."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from isda.networks.cost import count_multiply_adds
from isda.networks.registry import IMAGENET, TIMM_PREFIX, create

__all__ = ["fitting_width", "multiply_adds"]

WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)
"""Factors on channel counts that are tried, the widest first."""
CLASSES = 10


def multiply_adds(network: str, side: int, width: float = 1.0) -> float:
    """Multiply-adds of one image, about: in proportion to its pixels and to the square of the width.

    Example:
        >>> round(multiply_adds("resnet-32", side=32) / 1e6), round(multiply_adds("resnet-32", 16, width=0.5) / 1e6, 1)
        (69, 4.3)
    """
    own = 224 if network in IMAGENET or network.startswith(TIMM_PREFIX) else 32
    return _counted(network, own) * (width * side / own) ** 2


def fitting_width(network: str, most: float, side: int) -> float:
    """The widest factor on a network's channels with which it stays within so many multiply-adds, or the narrowest.

    Args:
        network: by name, as `isda.networks.create` takes it.
        most: multiply-adds of one forward pass of one image, about.
        side: pixels of the image, in height and width.

    Example:
        >>> fitting_width("resnet-32", 10e6, side=32), fitting_width("resnet-32", 1e9, side=32)
        (0.25, 1.0)
    """
    if network.startswith(TIMM_PREFIX):
        return 1.0
    return next((width for width in WIDTHS if multiply_adds(network, side, width) <= most), WIDTHS[-1])


@cache
def _counted(network: str, side: int) -> int:
    with torch.device("meta"):
        made: Any = create(network, num_classes=CLASSES)
    return count_multiply_adds(made, (3, side, side))
