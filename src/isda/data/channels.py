"""Grey images as colour and colour images as grey, for networks that take the other kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isda.data.augment.draws import Draws

__all__ = ["Channels", "with_channels"]

LUMA = (0.299, 0.587, 0.114)


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


class Channels:
    """`with_channels` as a transform, which comes first; images that are decoded on access are a sequence.

    Args:
        channels: that the network takes.
    """

    def __init__(self, channels: int) -> None:
        self.channels = channels

    def __call__(self, images: Tensor | Sequence[Tensor], draws: Draws | None = None) -> Any:
        """N images of any sizes in, the same with so many channels out."""
        if isinstance(images, Tensor):
            return with_channels(images, self.channels)
        return [with_channels(image.unsqueeze(0), self.channels)[0] for image in images]

    def __repr__(self) -> str:
        return f"Channels({self.channels})"
