"""The head of DeepLab-v3 (Chen et al., "Rethinking atrous convolution", 2017): one layer at several dilations."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["AtrousHead"]


class AtrousHead(nn.Module):
    """torchvision's atrous spatial pyramid pooling, projected to the features by a 1x1 convolution.

    The branches have half as many channels as the features (256 and 512 for ResNet-101, as in the authors' code) and
    dilations of 12, 24 and 36 at output stride 8, which is 96, 192 and 288 pixels of the image at any.

    Args:
        in_channels: of the maps.
        feature_dim: channels of the features.
        output_stride: pixels of the image per position of the maps.
        dropout: rate at which whole channels of the features are dropped.

    Example:
        >>> import torch
        >>> AtrousHead(16, 4, output_stride=16)(torch.ones(2, 16, 5, 7)).shape
        torch.Size([2, 4, 5, 7])
    """

    def __init__(self, in_channels: int, feature_dim: int, *, output_stride: int = 8, dropout: float = 0.1) -> None:
        from torchvision.models.segmentation.deeplabv3 import ASPP
        from torchvision.ops import Conv2dNormActivation

        super().__init__()
        rates = [rate * 8 // output_stride for rate in (12, 24, 36)]
        inner = max(1, feature_dim // 2)
        self.pooling = ASPP(in_channels, rates, inner)
        # Its own projection keeps the channels of the branches, and half of its features are dropped.
        self.pooling.project = nn.Sequential(
            Conv2dNormActivation(len(self.pooling.convs) * inner, feature_dim, kernel_size=1), nn.Dropout2d(dropout)
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, h, w) to (N, feature_dim, h, w)."""
        features: Tensor = self.pooling(maps)
        return features
