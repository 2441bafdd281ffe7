"""Images that the tests of data draw themselves."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor


@pytest.fixture
def write_images() -> Callable[..., None]:
    """Writes random PNG images: write_images(folder, count, size=(height, width), mode="RGB")."""
    from PIL import Image

    def write(folder: Path, count: int, size: tuple[int, int] = (6, 5), mode: str = "RGB", seed: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(seed)
        for i in range(count):
            shape = (*size, 3) if mode == "RGB" else size
            Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{i:03d}.png")

    return write


@pytest.fixture
def images_of() -> Callable[..., Tensor]:
    """Noise, few grey levels, flat areas, ramps and edges as images (N, channels, height, width)."""

    def make(channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        rows, columns = torch.arange(height)[:, None].expand(height, width), torch.arange(width).expand(height, width)
        images = [
            *torch.randint(0, 256, (3, channels, height, width), generator=generator),
            torch.randint(100, 140, (channels, height, width), generator=generator),
            torch.randint(0, 2, (channels, height, width), generator=generator) * 255,
            torch.full((channels, height, width), 77),
            torch.full((channels, height, width), 255),
            torch.stack([(rows * (7 + channel)) % 256 for channel in range(channels)]),
            torch.stack([(columns * 8 + 40 * channel) % 256 for channel in range(channels)]),
            ((rows // 4 + columns // 4) % 2 * 200 + 20).expand(channels, -1, -1),
        ]
        return torch.stack(images).to(torch.uint8)

    return make
