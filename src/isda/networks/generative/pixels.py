"""Between the pixels of a data set and what generators make: 0..255 and [-1, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["from_pixels", "to_pixels"]


def from_pixels(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pixels x of uint8 images as x / 127.5 - 1.

    Example:
        >>> from_pixels(torch.tensor([0, 255], dtype=torch.uint8))
        tensor([-1.,  1.])
    """
    return images.to(dtype).div(127.5).sub(1)


def to_pixels(images: Tensor) -> Tensor:
    """The nearest uint8 of (x + 1) * 127.5.

    Example:
        >>> to_pixels(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([  0, 128, 255], dtype=torch.uint8)
    """
    return images.float().add(1).mul(127.5).round().clamp(0, 255).to(torch.uint8)
