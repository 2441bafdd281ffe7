"""What a network costs, and how narrow it must be: counted once at its full width, the rest in proportion."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isda.networks.cost import count_multiply_adds
from isda.networks.registry import IMAGENET, TIMM_PREFIX, create

__all__ = ["Size", "count_size", "fitting_width", "network_size"]

WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
"""Factors on channel counts that are tried, the widest first."""
CLASSES = 10


class Size(NamedTuple):
    """Of one image in one forward pass."""

    multiply_adds: float
    elements: float
    """That the layers put out."""


def network_size(network: str, side: int, width: float = 1.0) -> Size:
    """What one image costs, about: in proportion to its pixels; multiply-adds to the square of the width.

    Example:
        >>> round(network_size("resnet-32", side=32).multiply_adds / 1e6)
        69
        >>> round(network_size("resnet-32", 16, width=0.5).multiply_adds / 1e6, 1)
        4.3
    """
    own = 224 if network in IMAGENET or network.startswith(TIMM_PREFIX) else 32
    full, pixels = _counted(network, own), (side / own) ** 2
    return Size(full.multiply_adds * pixels * width**2, full.elements * pixels * width)


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
    return next((width for width in WIDTHS if network_size(network, side, width).multiply_adds <= most), WIDTHS[-1])


def count_size(network: nn.Module, side: int) -> Size:
    """Count on shapes alone: multiply-adds, and what every layer without further layers in it puts out."""
    elements = 0

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal elements
        elements += output.numel() if isinstance(output, Tensor) else 0

    leaves = [module for module in network.modules() if not any(module.children())]
    handles = [module.register_forward_hook(count) for module in leaves]
    try:
        counted = count_multiply_adds(network, (3, side, side))
    finally:
        for handle in handles:
            handle.remove()
    return Size(counted, elements)


@cache
def _counted(network: str, side: int) -> Size:
    with torch.device("meta"):
        made: Any = create(network, num_classes=CLASSES)
    return count_size(made, side)
