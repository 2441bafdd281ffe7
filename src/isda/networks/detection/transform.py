"""From images of any size to one tensor: normalised, resized and put on a canvas that all processes share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.transform import GeneralizedRCNNTransform

__all__ = ["CanvasTransform"]


class CanvasTransform(GeneralizedRCNNTransform):
    """torchvision's, with a canvas for the largest image of the whole batch.

    What a convolution sees beyond an image's border depends on where the canvas ends. A target may list the sizes of
    all images of its batch under "batch_sizes", also of those that other processes see.
    """

    channels_last = False

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[dict[str, Any]] | None = None
    ) -> tuple[ImageList, list[dict[str, Any]] | None]:
        """Images (3, H, W) in 0..1 and their targets, resized so that the short side is ``min_size``."""
        made: list[Tensor] = []
        changed: list[dict[str, Any]] = []
        for index, image in enumerate(images):
            target = None if targets is None else dict(targets[index])
            self.resized(*image.shape[1:])
            image, target = self.resize(self.normalize(image), target)
            made.append(image)
            if target is not None:
                changed.append(target)
        sizes = [(int(image.shape[1]), int(image.shape[2])) for image in made]
        others = changed[0].get("batch_sizes", ()) if changed else ()
        canvas = self.canvas([*sizes, *(self.resized(*size) for size in others)])
        batch = made[0].new_zeros(len(made), made[0].shape[0], *canvas)
        for place, image in zip(batch, made, strict=True):
            place[:, : image.shape[1], : image.shape[2]].copy_(image)
        if self.channels_last:
            batch = batch.contiguous(memory_format=torch.channels_last)
        return ImageList(batch, sizes), changed if targets is not None else None

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """The size that an image of this size gets; a ValueError if no pixel of its short side is left."""
        short, long = min(height, width), max(height, width)
        scale = min(self.min_size[-1] / short, self.max_size / long)
        size = math.floor(height * scale), math.floor(width * scale)
        if min(size) < 1:
            raise ValueError(
                f"images must have a long side of at most {self.max_size} times the short side, which are resized to "
                f"{self.max_size} pixels, got {width} x {height} pixels"
            )
        return size

    def canvas(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Height and width that hold all the sizes, both divisible."""
        step = self.size_divisible
        height, width = (math.ceil(max(side) / step) * step for side in zip(*sizes, strict=True))
        return height, width
