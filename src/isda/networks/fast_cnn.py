"""A narrow network that learns CIFAR-sized images quickly on a processor without accelerator."""

from collections import OrderedDict

from torch import Tensor, nn

from isda.networks.arguments import dropout_rate, scaled_channels
from isda.networks.initialisation import with_classifier
from isda.networks.network import GlobalAveragePool, Network

__all__ = ["PooledBlock", "fast_cnn"]


class PooledBlock(nn.Module):
    """A 3x3 convolution followed at once by 2x2 max-pooling, then a residual 3x3 convolution at half resolution.

    Pooling before normalisation leaves a quarter of the positions to everything that follows: most of what makes the
    speed-run networks fast.

    Args:
        in_channels: of the maps it reads.
        out_channels: of those it makes.
        dropout: rate of the dropout between the two convolutions.
    """

    def __init__(self, in_channels: int, out_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.reduce = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )
        self.residual = nn.Sequential(
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / 2, W / 2)."""
        reduced: Tensor = self.reduce(maps)
        residual: Tensor = self.residual(self.dropout(reduced))
        return reduced + residual


def fast_cnn(num_classes: int, in_channels: int = 3, width: float = 1.0, dropout: float = 0.0) -> Network:
    """A stem and three pooled blocks with 32, 64 and 128 channels, global average, classifier.

    Our own design in the spirit of the published CIFAR-10 speed-run networks (few layers, early pooling, a residual
    convolution per block), narrowed until a step is cheap on one core.

    Args:
        num_classes: number of logits.
        in_channels: channels of the images, which must measure at least 8x8.
        width: factor on all channel counts.
        dropout: rate of the dropout inside every block.

    Example:
        >>> fast_cnn(num_classes=10).feature_dim
        128
    """
    stem, *counts = (scaled_channels(count, width) for count in (16, 32, 64, 128))
    rate = dropout_rate(dropout)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = nn.Sequential(
        nn.Conv2d(in_channels, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem), nn.ReLU(inplace=True)
    )
    current = stem
    for block, count in enumerate(counts, start=1):
        layers[f"block{block}"] = PooledBlock(current, count, rate)
        current = count
    layers["pool"] = GlobalAveragePool()
    return with_classifier(nn.Sequential(layers), current, num_classes)
