"""Images of any data set as a backbone that was trained on another one takes them: its channels, its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isda.classification.batches import take
from isda.classification.config import Config
from isda.classification.trained import Trained, fit_size
from isda.data import DataSet
from isda.data.dataset import Images

__all__ = ["adapted", "features", "with_channels"]

LUMA = (0.299, 0.587, 0.114)
BATCH = 500


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Grey images (N, 1, H, W) as colour, or colour ones as grey by their luminance (ITU-R BT.601), still uint8.

    Example:
        >>> with_channels(torch.full((1, 3, 1, 1), 100, dtype=torch.uint8), 1)
        tensor([[[[100]]]], dtype=torch.uint8)
    """
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.expand(-1, channels, -1, -1)
    if images.shape[1] == 3 and channels == 1:
        weights = torch.tensor(LUMA, device=images.device).view(1, 3, 1, 1)
        return (images * weights).sum(1, keepdim=True).round().to(torch.uint8)
    raise ValueError(
        f"images must have 1, 3 or the {channels} channels that the backbone takes, got {images.shape[1]} channels"
    )


def adapted(data: DataSet, config: Config) -> DataSet:
    """A data set whose images have the channels and the size that a backbone was trained on.

    Raises:
        ValueError: images that are decoded on access, for a backbone that was not trained on such images.
    """
    if config.image_size is None:
        return data
    if not isinstance(data.x_train, Tensor) or not isinstance(data.x_test, Tensor):
        raise ValueError(
            f"data must hold images of one size in memory to fine-tune a backbone trained on {config.data}, "
            f"got {data.name}, whose images are decoded on access"
        )
    if (data.channels, data.image_size) == (config.channels, config.image_size):
        return data
    train, test = (
        fit_size(with_channels(images, config.channels), config.image_size) for images in (data.x_train, data.x_test)
    )
    return replace(data, x_train=train, x_test=test, published=None)


@torch.no_grad()
def features(trained: Trained, images: Images, indices: Tensor, device: torch.device) -> Tensor:
    """(N, A) what the classifier of a trained network reads of each image, float64 on the CPU."""
    network, config = trained.network.to(device), trained.config
    rows = []
    for part in indices.split(BATCH):
        taken = take(images, part)
        seen = trained.pipeline(_as_seen(taken, config)).to(device=device, dtype=config.dtype)
        rows.append(network.features(seen).double().cpu())
    return torch.cat(rows)


def _as_seen(taken: Tensor | Sequence[Tensor], config: Config) -> Tensor | list[Tensor]:
    if isinstance(taken, Tensor):
        sized = with_channels(taken, config.channels)
        return sized if config.image_size is None else fit_size(sized, config.image_size)
    each = [with_channels(image.unsqueeze(0), config.channels) for image in taken]
    if config.image_size is None:
        return [image[0] for image in each]
    return torch.cat([fit_size(image, config.image_size) for image in each])
