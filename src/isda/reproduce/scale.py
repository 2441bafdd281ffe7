"""How large a reproduction is: the paper's own size, or less of everything, said wherever its numbers stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from isda.networks.cost import count_multiply_adds
from isda.networks.registry import TIMM_PREFIX, create

__all__ = ["SCALES", "Scale", "fitting_width"]

WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)
"""Factors on channel counts that are tried, the widest first."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a reproduction leaves out; at the paper's own scale nothing is, and the limits mean nothing."""

    name: str
    told: str
    """For whoever reads the numbers."""
    seeds: int
    full: bool = False
    """Whether it is the paper's."""
    images: int = 0
    """Training images."""
    epochs: int = 0
    batch_size: int = 0
    """At most so many samples per step."""
    multiply_adds: float = 0.0
    """Most of one image in one forward pass: networks are narrowed until they fit."""
    trials: int | None = None
    """Values of a setting that are tried, of those that the paper tries."""
    widen: int = 0
    """Steps beyond the paper's grid where its edge wins."""

    stand_ins: bool = False
    """Whether data that ships with a dependency stands in for what is not there."""


SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(name="paper", told="the paper's networks, images and epochs", seeds=5, full=True),
        Scale(
            name="small",
            told="2,000 images, 10 epochs, networks narrowed to 10 million multiply-adds: for an hour or two on a CPU",
            seeds=3,
            images=2000,
            epochs=10,
            batch_size=64,
            multiply_adds=10e6,
            trials=3,
            widen=1,
        ),
        Scale(
            name="smoke",
            told="100 images, 2 epochs, networks of a million multiply-adds: a trial of the machinery, no evidence",
            seeds=2,
            images=100,
            epochs=2,
            batch_size=20,
            multiply_adds=1e6,
            trials=2,
            stand_ins=True,
        ),
    )
}
"""By name, the largest first."""


@cache
def fitting_width(network: str, multiply_adds: float, side: int) -> float:
    """The widest factor on a network's channels with which it stays within so many multiply-adds, or the narrowest.

    Args:
        network: by name, as `isda.networks.create` takes it.
        multiply_adds: of one forward pass of one image.
        side: pixels of the image, in height and width.

    Example:
        >>> fitting_width("resnet-32", 10e6, side=32), fitting_width("resnet-32", 1e9, side=32)
        (0.25, 1.0)
    """
    if network.startswith(TIMM_PREFIX):
        return 1.0
    for width in WIDTHS:
        with torch.device("meta"):
            made: Any = create(network, num_classes=10, width=width)
        if count_multiply_adds(made, (3, side, side)) <= multiply_adds:
            return width
    return WIDTHS[-1]
