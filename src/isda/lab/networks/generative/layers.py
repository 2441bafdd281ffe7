"""Layers of DCGAN (Radford et al., 2016) for small images, for one network or several in parallel.

Several networks of one shape are one network with grouped convolutions. Group normalisation (Wu and He, 2018)
replaces batch normalisation, so that an image does not depend on its batch or on the number of processes.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from isda._utils.devices import send
from isda.lab.networks.network import scaled_channels

SIZES = {8: 2, 28: 2, 32: 3}
"""Number of halvings by the side of an image in pixels: down to 2x2, 7x7 and 4x4."""

BASE_CHANNELS = 64
"""Channels of the stage next to the image; they double with every halving."""
NORM_GROUPS = 4
LEAKY_SLOPE = 0.2


def stage_channels(size: int, width: float) -> list[int]:
    """The channels of each stage, from the one next to the image to the smallest.

    Example:
        >>> stage_channels(32, 0.5)
        [32, 64, 128]
    """
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(map(str, SIZES))} pixels, got {size!r}")
    return [scaled_channels(BASE_CHANNELS << stage, width) for stage in range(SIZES[size])]


class GeneratorBody(nn.Module):
    """Latent vectors to images in [-1, 1]: a projection, then transposed convolutions that double the side.

    ``inputs`` is the length of the latent vector of each network, ``groups`` the number of networks in parallel.

    Example:
        >>> import torch
        >>> GeneratorBody(100, 3, 32, width=0.25, groups=10)(torch.zeros(2, 1000)).shape
        torch.Size([2, 30, 32, 32])
    """

    def __init__(self, inputs: int, channels: int, size: int, width: float = 1.0, groups: int = 1) -> None:
        super().__init__()
        stages = stage_channels(size, width)[::-1]
        self.side = size >> len(stages)
        area = self.side**2
        self.project = nn.Conv2d(groups * inputs, groups * stages[0] * area, 1, bias=False, groups=groups)
        layers: list[nn.Module] = [_norm(stages[0], groups), nn.ReLU()]
        for before, after in pairwise(stages):
            layers += [_double(before, after, groups, bias=False), _norm(after, groups), nn.ReLU()]
        layers += [_double(stages[-1], channels, groups, bias=True), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        _initialise(self)

    def forward(self, latent: Tensor) -> Tensor:
        """(N, groups x channels, size, size) from (N, groups x inputs)."""
        maps = self.project(latent[:, :, None, None]).view(len(latent), -1, self.side, self.side)
        images: Tensor = self.layers(maps)
        return images


class DiscriminatorBody(nn.Module):
    """Images to features: convolutions that halve the side.

    ``groups`` is the number of networks in parallel.

    Example:
        >>> import torch
        >>> body = DiscriminatorBody(1, 28, width=0.25)
        >>> body(torch.zeros(2, 1, 28, 28)).shape, body.feature_dim
        (torch.Size([2, 1568]), 1568)
    """

    def __init__(self, channels: int, size: int, width: float = 1.0, groups: int = 1) -> None:
        super().__init__()
        stages = stage_channels(size, width)
        layers: list[nn.Module] = [_halve(channels, stages[0], groups, bias=True), nn.LeakyReLU(LEAKY_SLOPE)]
        for before, after in pairwise(stages):
            layers += [_halve(before, after, groups, bias=False), _norm(after, groups), nn.LeakyReLU(LEAKY_SLOPE)]
        self.layers = nn.Sequential(*layers)
        self.feature_dim = stages[-1] * (size >> len(stages)) ** 2
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """(N, groups x feature_dim) from (N, groups x channels, size, size)."""
        features: Tensor = self.layers(images)
        return features.flatten(1)


def _double(before: int, after: int, groups: int, *, bias: bool) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(groups * before, groups * after, 4, stride=2, padding=1, bias=bias, groups=groups)


def _halve(before: int, after: int, groups: int, *, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(groups * before, groups * after, 4, stride=2, padding=1, bias=bias, groups=groups)


def _norm(channels: int, groups: int) -> nn.GroupNorm:
    parts = NORM_GROUPS if channels % NORM_GROUPS == 0 else 1
    return nn.GroupNorm(groups * parts, groups * channels)


def _initialise(body: nn.Module) -> None:
    """Weights from a normal distribution with standard deviation 0.02, as in DCGAN."""
    for module in body.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class ClassTable:
    """Arranges rows by class in a table (M, K), where M is the number of rows of the most frequent class.

    Labels are on the CPU, so that M is known without a device synchronisation.

    Example:
        >>> table = ClassTable(torch.tensor([1, 1, 0]), 2)
        >>> table.scatter(torch.tensor([[5.0], [6.0], [7.0]]))
        tensor([[[7.],
                 [5.]],
        <BLANKLINE>
                [[0.],
                 [6.]]])
        >>> table.gather(table.scatter(torch.tensor([[5.0], [6.0], [7.0]]))).flatten()
        tensor([5., 6., 7.])
    """

    def __init__(self, labels: Tensor, num_classes: int) -> None:
        if not labels.is_cpu:
            raise ValueError(f"labels must be on the CPU, got them on {labels.device}")
        counts = labels.bincount(minlength=num_classes)
        if len(counts) > num_classes:
            raise ValueError(f"labels must be below {num_classes}, got {int(labels.max())}")
        order = labels.argsort(stable=True)
        row = torch.empty_like(labels)
        row[order] = torch.arange(len(labels), device="cpu") - (counts.cumsum(0) - counts)[labels[order]]
        self.shape = int(counts.max()), num_classes
        self.positions = row * num_classes + labels

    def scatter(self, rows: Tensor) -> Tensor:
        """The table (M, K, ...) of rows (N, ...), zero elsewhere."""
        table = rows.new_zeros(self.shape[0] * self.shape[1], *rows.shape[1:])
        return table.index_copy(0, send(self.positions, rows.device), rows).unflatten(0, self.shape)

    def gather(self, table: Tensor) -> Tensor:
        """The rows (N, ...) of a table (M, K, ...)."""
        return table.flatten(0, 1).index_select(0, send(self.positions, table.device))


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
