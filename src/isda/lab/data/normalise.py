"""Channel statistics of a training set, and per-image normalisation.

`isda.lab.data.augment.Normalize` applies the channel statistics at the end of a pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from isda.lab.data.image_files import ImageFiles

# Below this standard deviation (pixels in 0..1) an image counts as constant: one 8-bit step in one pixel of a
# 224x224 colour image still gives 1e-5, rounding in float32 gives less than 1e-7.
CONSTANT = 1e-6

# Enough that the standard error of a channel mean is below one 8-bit step, few enough to decode in seconds.
DECODED_FOR_STATISTICS = 2000


class ChannelStatistics(NamedTuple):
    """Mean and standard deviation of each channel, for pixels in 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


PUBLISHED_STATISTICS = {
    # Pixels in 0..255 as in the Wide-ResNet and DenseNet papers' code, which ISDA's follows.
    "cifar10": ChannelStatistics((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "cifar100": ChannelStatistics((129.3 / 255, 124.1 / 255, 112.4 / 255), (68.2 / 255, 65.4 / 255, 70.4 / 255)),
    "svhn": ChannelStatistics((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "imagenet": ChannelStatistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def as_float(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pixels in 0..1: uint8 is divided by 255 and becomes `dtype`, floating point stays as it is.

    Example:
        >>> as_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    if images.dtype == torch.uint8:
        return images.to(dtype) / 255
    if not images.is_floating_point():
        raise ValueError(f"images must be uint8 or floating point in 0..1, got {images.dtype}")
    return images


def channel_statistics(images: Tensor | ImageFiles) -> ChannelStatistics:
    """Mean and standard deviation of each channel over all pixels of uint8 images (N, C, H, W), exactly.

    Images that are decoded on access are sampled: up to 2,000 of them, evenly spaced (and so evenly over the
    classes, since the files of a folder are in class order). A constant channel gets the standard deviation 1, so
    that it can be divided by.

    Example:
        >>> images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
        >>> channel_statistics(images)
        ChannelStatistics(mean=(0.5,), std=(0.5,))
    """
    if isinstance(images, Tensor):
        if images.dtype != torch.uint8 or images.dim() != 4 or len(images) == 0:
            raise ValueError(
                f"images must be uint8 of shape (N, C, H, W), got {images.dtype} of shape {tuple(images.shape)}"
            )
        batches = [images]
    else:
        step = -(-len(images) // DECODED_FOR_STATISTICS)
        batches = [images[i][None] for i in range(0, len(images), step)]
    # A histogram of the 256 values is exact, and needs no floating-point copy of the images.
    pixels = [batch.transpose(0, 1).flatten(1) for batch in batches]
    histograms = [torch.stack([channel.bincount(minlength=256) for channel in part]) for part in pixels]
    # On the host: not every accelerator has float64.
    counts = torch.stack(histograms).sum(0).cpu().double()
    weights = counts / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = weights @ values
    variance = (weights * (values - mean[:, None]).square()).sum(1)
    return ChannelStatistics(tuple(mean.tolist()), tuple(v**0.5 or 1.0 for v in variance.tolist()))


def normalise_per_image(images: Tensor) -> Tensor:
    """Zero mean and unit standard deviation over all pixels and channels of each image; constant images become 0.

    Takes uint8 (N, C, H, W) or floating point in 0..1.

    Example:
        >>> images = torch.tensor([[0, 255], [7, 7]], dtype=torch.uint8).reshape(2, 1, 1, 2)
        >>> normalise_per_image(images).flatten(1)
        tensor([[-1.,  1.],
                [ 0.,  0.]])
    """
    if images.dim() != 4:
        raise ValueError(f"images must have the shape (N, C, H, W), got {tuple(images.shape)}")
    pixels = as_float(images)
    # Half precision cannot hold the sum of thousands of pixels.
    wide = pixels.float()
    std, mean = torch.std_mean(wide, dim=(1, 2, 3), correction=0, keepdim=True)
    constant = std <= CONSTANT
    return ((wide - mean) / std.masked_fill(constant, 1.0)).masked_fill(constant, 0.0).to(pixels.dtype)
