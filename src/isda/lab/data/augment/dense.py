"""Random scale, mirror and crop of images together with their label maps, for dense prediction.

Only the pixels of the crop are resampled; the enlarged image is never built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isda.lab.data.augment.draws import Draws, require_draws
from isda.lab.devices import send

DenseSample = tuple[Tensor, Tensor]
"""uint8 (3, H, W) image and uint8 (H, W) labels."""


@dataclass(eq=False)
class ScaleMirrorCrop:
    """A window of fixed size out of each image at a random scale, mirrored with probability 1/2.

    What lies beyond the image, below it or on its right, has the colour ``fill`` and the label ``ignored``. Images
    are resampled bilinearly and labels by the nearest pixel, without smoothing, as segmentation recipes usually do.
    The scales are those of the toolbox that the paper names, which draws from 0.7, 0.8, ..., 2.1; here it is any
    factor in between.

    Args:
        size: (height, width) of the result.
        scales: smallest and largest factor on the size of the image, drawn uniformly.
        mirror: whether images are mirrored.
        fill: colour beyond the image, one value in 0..1 per channel.
        ignored: label beyond the image.
    """

    size: tuple[int, int]
    scales: tuple[float, float] = (0.7, 2.1)
    mirror: bool = True
    fill: Sequence[float] = (0.0, 0.0, 0.0)
    ignored: int = 255

    def __post_init__(self) -> None:
        if min(self.size) < 1:
            raise ValueError(f"size must be (height, width) of at least 1 pixel, got {self.size}")
        if not 0 < self.scales[0] <= self.scales[1]:
            raise ValueError(f"scales must be (smallest, largest) with 0 < smallest <= largest, got {self.scales}")

    def __call__(self, samples: Sequence[DenseSample], draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """float32 (N, 3, h, w) images with pixels in 0..1, and int64 (N, h, w) labels.

        Args:
            samples: N images of any sizes, with their labels.
            draws: for N samples.
        """
        draws = require_draws(draws, len(samples))
        windows = []
        for (image, labels), (scale, top, left, mirror) in zip(samples, draws.uniform(4).tolist(), strict=True):
            factor = self.scales[0] + scale * (self.scales[1] - self.scales[0])
            height, width = (max(1, round(side * factor)) for side in image.shape[1:])
            start = int(top * (max(height - self.size[0], 0) + 1)), int(left * (max(width - self.size[1], 0) + 1))
            flip = self.mirror and mirror < 0.5
            window = (height, width), start, self.size
            windows.append(resized_window(image, labels, *window, mirrored=flip, fill=self.fill, ignored=self.ignored))
        images, label_maps = zip(*windows, strict=True)
        return torch.stack(images), torch.stack(label_maps)


def resized_window(
    image: Tensor,
    labels: Tensor,
    scaled: tuple[int, int],
    start: tuple[int, int],
    size: tuple[int, int],
    *,
    mirrored: bool,
    fill: Sequence[float],
    ignored: int,
) -> DenseSample:
    """A window of an image that is resized to ``scaled``, optionally mirrored.

    The same as F.interpolate(..., align_corners=False) of the image (bilinear) and of the labels (nearest-exact) to
    ``scaled``, padding at the bottom and on the right, and cropping.

    ``start`` is the first row and column of the window in the resized image, ``size`` its height and width. The colour
    ``fill`` (one value in 0..1 per channel) and the label ``ignored`` are used beyond the image.

    Returns:
        float32 (3, *size) with pixels in 0..1, and int64 (*size) labels.
    """
    rows, columns = (
        _SampledAxis(full, new, first, length, image.device)
        for full, new, first, length in zip(image.shape[1:], scaled, start, size, strict=True)
    )
    pixels = columns.interpolate(rows.interpolate(image, 1), 2).div_(255)
    classes = labels[rows.nearest[:, None], columns.nearest].long()
    window = torch.tensor(fill, dtype=torch.float32, device=image.device).view(-1, 1, 1).repeat(1, *size)
    label_map = torch.full(size, ignored, dtype=torch.int64, device=image.device)
    window[:, : rows.count, : columns.count] = pixels
    label_map[: rows.count, : columns.count] = classes
    return (window.flip(2), label_map.flip(1)) if mirrored else (window, label_map)


class _SampledAxis:
    """Source pixels of one dimension of a window, for its first ``count`` pixels, which lie within the image."""

    def __init__(self, full: int, scaled: int, first: int, length: int, device: torch.device) -> None:
        self.count = min(length, scaled - first)
        # In float64 on the host, so that the nearest pixel does not depend on rounding.
        centre = torch.arange(first, first + self.count, dtype=torch.float64) + 0.5
        position = centre * (full / scaled)
        between = (position - 0.5).clamp(0, full - 1)
        before = between.floor().long()
        self.nearest = send(position.floor().long().clamp(max=full - 1), device)
        self.before, self.after = send(before, device), send((before + 1).clamp(max=full - 1), device)
        self.share = send((between - before).float(), device)

    def interpolate(self, image: Tensor, dim: int) -> Tensor:
        """float32, linear along one dimension."""
        shape = [-1 if i == dim else 1 for i in range(image.ndim)]
        before, after = (image.index_select(dim, lines).float() for lines in (self.before, self.after))
        return before.lerp_(after, self.share.view(shape))
