"""CutMix (Yun et al., ICCV 2019): a box of each image comes from another one, labels by area."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.cross_entropy import CrossEntropy
from isda.classification.methods.isda import ISDA
from isda.classification.methods.mixing import Mixing, Mixture
from isda.classification.methods.on_top import both_options
from isda.networks import Network

__all__ = ["Box", "CutMix", "CutMixISDA", "CutMixOptions", "draw_box"]


@dataclass(frozen=True, kw_only=True)
class CutMixOptions:
    """What may follow ``cutmix:``, beside the options of the loss."""

    alpha: float = 1.0
    """The share of an image is drawn from Beta(alpha, alpha)."""
    probability: float = 0.5
    """Of a batch to be mixed; 0.5 is the authors' for CIFAR, 1 for ImageNet."""


class Box(NamedTuple):
    """Rows top..bottom-1 and columns left..right-1."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        """Pixels."""
        return (self.bottom - self.top) * (self.right - self.left)


def draw_box(height: int, width: int, share: float) -> Box:
    """A box of about 1 - share of an image around a pixel drawn from all of them; what lies outside is cut off.

    Example:
        >>> draw_box(8, 8, share=1.0).area
        0
    """
    ratio = math.sqrt(1 - share)
    spans = []
    for length in (height, width):
        half, centre = int(length * ratio) // 2, int(torch.randint(length, ()))
        spans += [max(centre - half, 0), min(centre + half, length)]
    return Box(*spans)


class CutMix(Mixing):
    """A box of every image is taken from its partner; labels count by the area that the box really has."""

    name = "cutmix"
    Options = both_options(CutMixOptions, CrossEntropy)
    grid = {"probability": (0.25, 0.5, 0.75, 1.0)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: Any, network: Network, config: Config) -> None:
        super().__init__(options, network, config)
        if not 0 <= options.probability <= 1:
            raise ValueError(f"probability must lie in 0..1, got {options.probability}")
        self.probability = options.probability

    def prepare(self, batch: Batch) -> Batch:
        """The mixed batch, or, with probability 1 - p, the batch itself."""
        return super().prepare(batch) if float(torch.rand(())) < self.probability else batch

    def mixed(self, batch: Batch, mixture: Mixture) -> tuple[Batch, float]:
        """The same box of all images of the batch."""
        height, width = batch.images.shape[2:]
        box = draw_box(height, width, mixture.share)
        images = batch.images.clone()
        window = (..., slice(box.top, box.bottom), slice(box.left, box.right))
        images[window] = batch.images[window].index_select(0, mixture.partners)
        return replace(batch, images=images), 1 - box.area / (height * width)


class CutMixISDA(CutMix):
    """ISDA on mixed images."""

    name = "cutmix+isda"
    base_type = ISDA
    Options = both_options(CutMixOptions, ISDA)
