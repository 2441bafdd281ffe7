"""DenseNet-BC for 32x32 images (Huang et al., "Densely connected convolutional networks", CVPR 2017)."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from isda.lab.networks.network import GlobalAveragePool, Network, dropout_rate, scaled_channels, with_classifier


class DenseLayer(nn.Module):
    """Bottleneck layer ("B"): 1x1 convolution to 4k channels, 3x3 to k, appended to the input.

    Each convolution reads normalised and rectified maps; dropout, if any, follows each convolution.
    """

    def __init__(self, in_channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.added = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(in_channels, 4 * growth, 1, bias=False),
            nn.Dropout(dropout),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            nn.Dropout(dropout),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, in_channels + growth, H, W)."""
        return torch.cat((maps, self.added(maps)), dim=1)


def densenet(
    depth: int, growth: int, num_classes: int, in_channels: int = 3, dropout: float = 0.0, width: float = 1.0
) -> Network:
    """DenseNet-BC-``depth``-``growth``: three dense blocks of (depth - 4) / 6 bottleneck layers, compression 0.5.

    The first convolution makes 2 ``growth`` channels. ``width`` is a factor on the growth rate, ``dropout`` the rate
    after every convolution except the first (the publication uses 0.2 without augmentation).

    Example:
        >>> densenet(40, 12, num_classes=10).feature_dim
        132
    """
    rate = dropout_rate(dropout)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    growth = scaled_channels(growth, width)
    current = 2 * growth
    layers["stem"] = nn.Conv2d(in_channels, current, 3, padding=1, bias=False)
    for block in range(3):
        dense = nn.Sequential()
        for _ in range((depth - 4) // 6):
            dense.append(DenseLayer(current, growth, rate))
            current += growth
        layers[f"block{block + 1}"] = dense
        if block < 2:
            layers[f"transition{block + 1}"] = nn.Sequential(
                nn.BatchNorm2d(current),
                nn.ReLU(inplace=True),
                nn.Conv2d(current, current // 2, 1, bias=False),
                nn.Dropout(rate),
                nn.AvgPool2d(2),
            )
            current //= 2
    layers["activation"] = nn.Sequential(nn.BatchNorm2d(current), nn.ReLU(inplace=True))
    layers["pool"] = GlobalAveragePool()
    return with_classifier(nn.Sequential(layers), current, num_classes)
