"""The feature pyramid on the stages of a backbone."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops.feature_pyramid_network import ExtraFPNBlock, FeaturePyramidNetwork

from isda.networks.detection.backbones import Stages

__all__ = ["PooledLevels", "Pyramid"]

LEVELS = 5
"""Of the pyramid: the stages' and as many subsampled ones as are missing."""


class PooledLevels(ExtraFPNBlock):
    """Further levels, each every second position of the one before."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, results: list[Tensor], x: list[Tensor], names: list[str]) -> tuple[list[Tensor], list[str]]:
        """Append them to the results of the pyramid."""
        for number in range(self.count):
            results.append(F.max_pool2d(results[-1], kernel_size=1, stride=2))
            names.append(f"pool{number}")
        return results, names


class Pyramid(nn.Module):
    """Images to maps with one number of channels, at five resolutions. Parameters are named as torchvision names them.

    Args:
        stages: of the backbone.
        out_channels: of every map.
    """

    def __init__(self, stages: Stages, out_channels: int) -> None:
        super().__init__()
        self.body = stages.body
        self.out_channels = out_channels
        pooled = max(1, LEVELS - len(stages.channels))
        self.fpn = FeaturePyramidNetwork(stages.channels, out_channels, PooledLevels(pooled))
        self.strides = [*stages.strides, *(stages.strides[-1] * 2**number for number in range(1, pooled + 1))]
        self.names = [str(number) for number in range(len(stages.channels))]
        """Of the levels that regions are pooled from."""

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Map (N, 3, H, W) to the levels, from fine to coarse."""
        maps = self.body(images)
        # timm gives a list.
        named = maps if isinstance(maps, OrderedDict) else OrderedDict((str(i), one) for i, one in enumerate(maps))
        levels: OrderedDict[str, Tensor] = self.fpn(named)
        return levels
