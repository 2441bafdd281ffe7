"""The head of PSPNet (Zhao et al., "Pyramid scene parsing network", 2017): context from four levels of pooling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isda.networks.segmentation.resizing import resize

__all__ = ["PyramidHead"]


class PyramidHead(nn.Module):
    """Maps pooled to bins x bins, projected, enlarged again and joined with the maps; then one 3x3 convolution.

    Args:
        in_channels: of the maps.
        feature_dim: channels of each level and of the features.
        dropout: rate at which whole channels of the features are dropped.
        bins: positions per side in each level.

    Example:
        >>> PyramidHead(16, 4)(torch.ones(2, 16, 5, 7)).shape
        torch.Size([2, 4, 5, 7])
    """

    def __init__(
        self, in_channels: int, feature_dim: int, *, dropout: float = 0.1, bins: Sequence[int] = (1, 2, 3, 6)
    ) -> None:
        from torchvision.ops import Conv2dNormActivation

        super().__init__()
        self.levels = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(side), Conv2dNormActivation(in_channels, feature_dim, kernel_size=1))
            for side in bins
        )
        self.fuse = nn.Sequential(
            Conv2dNormActivation(in_channels + len(bins) * feature_dim, feature_dim, kernel_size=3),
            nn.Dropout2d(dropout),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, h, w) to (N, feature_dim, h, w)."""
        context = [resize(level(maps), maps.shape[2:]) for level in self.levels]
        features: Tensor = self.fuse(torch.cat([*context, maps], dim=1))
        return features
