"""Images that exercise the operations: noise, ramps, flat areas, edges, few grey levels, grey colour images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2


def make_images(channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(0)

    def noise(low: int, high: int, count: int = channels) -> Tensor:
        return torch.randint(low, high, (count, height, width), generator=generator, dtype=torch.int64)

    rows = torch.arange(height)[:, None].expand(height, width)
    columns = torch.arange(width).expand(height, width)
    structured = [
        noise(0, 256),
        noise(0, 256),
        noise(100, 140),
        noise(0, 2) * 255,
        noise(0, 256, 1).expand(channels, -1, -1),
        torch.full((channels, height, width), 77),
        torch.zeros(channels, height, width, dtype=torch.int64),
        torch.full((channels, height, width), 255),
        torch.stack([(rows * (7 + channel)) % 256 for channel in range(channels)]),
        torch.stack([(columns * 8 + 40 * channel) % 256 for channel in range(channels)]),
        ((rows // 4 + columns // 4) % 2 * 200 + 20).expand(channels, -1, -1),
        ((rows * width + columns) % 256).expand(channels, -1, -1),
    ]
    return torch.stack(structured).to(torch.uint8)


@pytest.fixture
def images_of() -> Callable[..., Tensor]:
    return make_images


def apply_torchvision_operation(image: Tensor, name: str, magnitude: float) -> Tensor:
    """torchvision's own meaning of a name and a magnitude, taken from the method RandAugment calls."""
    transform = v2.RandAugment()
    return transform._apply_image_or_video_transform(image, name, magnitude, InterpolationMode.NEAREST, transform._fill)


@pytest.fixture
def torchvision_operation() -> Callable[[Tensor, str, float], Tensor]:
    return apply_torchvision_operation
