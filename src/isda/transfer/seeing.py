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
from isda.data.channels import with_channels
from isda.data.dataset import Images

__all__ = ["adapted", "as_seen", "features"]

BATCH = 500


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
        seen = as_seen(taken, config.channels, config.image_size)
        pixels = trained.pipeline(seen).to(device=device, dtype=config.dtype)
        rows.append(network.features(pixels).double().cpu())
    return torch.cat(rows)


def as_seen(
    taken: Tensor | Sequence[Tensor], channels: int, image_size: tuple[int, int] | None
) -> Tensor | list[Tensor]:
    """Images with other channels, and of one size where one is given: then they are one tensor (N, C, H, W)."""
    if isinstance(taken, Tensor):
        sized = with_channels(taken, channels)
        return sized if image_size is None else fit_size(sized, image_size)
    each = [with_channels(image.unsqueeze(0), channels) for image in taken]
    if image_size is None:
        return [image[0] for image in each]
    return torch.cat([fit_size(image, image_size) for image in each])
