"""Wide residual networks (Zagoruyko and Komodakis, "Wide residual networks", BMVC 2016)."""

from collections import OrderedDict

from torch import Tensor, nn

from isda.lab.networks.network import GlobalAveragePool, Network, dropout_rate, scaled_channels, with_classifier


class WideBlock(nn.Module):
    """Pre-activation block: normalise, rectify, convolve; dropout between the two 3x3 convolutions.

    Where the shape changes, both the residual branch and the 1x1 shortcut read the normalised and rectified input.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True))
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
        )
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        activated = self.activation(maps)
        shortcut: Tensor = maps if self.shortcut is None else self.shortcut(activated)
        residual: Tensor = self.residual(activated)
        return shortcut + residual


def wide_resnet(
    depth: int, widening: int, num_classes: int, in_channels: int = 3, dropout: float = 0.0, width: float = 1.0
) -> Network:
    """Wide-ResNet-``depth``-``widening``: three stages of (depth - 4) / 6 blocks with 16k, 32k and 64k channels.

    ``dropout`` is the rate inside every block. ``width`` is a factor on the channel counts of the stages; the stem
    keeps its 16.

    Example:
        >>> wide_resnet(10, 2, num_classes=10).feature_dim
        128
    """
    rate = dropout_rate(dropout)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
    current = 16
    for stage in range(3):
        count = scaled_channels(16 * widening * 2**stage, width)
        blocks = nn.Sequential()
        for block in range((depth - 4) // 6):
            blocks.append(WideBlock(current, count, 2 if stage > 0 and block == 0 else 1, rate))
            current = count
        layers[f"stage{stage + 1}"] = blocks
    layers["activation"] = nn.Sequential(nn.BatchNorm2d(current), nn.ReLU(inplace=True))
    layers["pool"] = GlobalAveragePool()
    return with_classifier(nn.Sequential(layers), current, num_classes)


def wide_resnet_28_10(num_classes: int, in_channels: int = 3, dropout: float = 0.3, width: float = 1.0) -> Network:
    """Wide-ResNet-28-10 with dropout by default; for the arguments see :func:`wide_resnet`.

    "All the results with Wide-ResNet-28-10 use the dropout technique" (the ISDA paper, section 6.2). The rate is that
    of the network's own publication on CIFAR, which is also what the ISDA paper adds to networks without dropout.
    """
    return wide_resnet(28, 10, num_classes, in_channels, dropout, width)
