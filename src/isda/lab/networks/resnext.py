"""ResNeXt for 32x32 images (Xie et al., "Aggregated residual transformations", CVPR 2017, section 5.3)."""

from collections import OrderedDict

from torch import Tensor, nn

from isda.lab.networks.network import GlobalAveragePool, Network, scaled_channels, with_classifier
from isda.lab.networks.resnet import projection_shortcut


class AggregatedBlock(nn.Module):
    """Bottleneck whose 3x3 convolution works in groups: 1x1, grouped 3x3, 1x1, beside a shortcut."""

    def __init__(self, in_channels: int, inner_channels: int, out_channels: int, stride: int, groups: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, inner_channels, 1, bias=False),
            nn.BatchNorm2d(inner_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner_channels, inner_channels, 3, stride, padding=1, groups=groups, bias=False),
            nn.BatchNorm2d(inner_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner_channels, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut = projection_shortcut(in_channels, out_channels, stride)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        total: Tensor = self.residual(maps) + self.shortcut(maps)
        return total.relu()


def resnext(
    depth: int, cardinality: int, group_width: int, num_classes: int, in_channels: int = 3, width: float = 1.0
) -> Network:
    """ResNeXt-``depth``, ``cardinality`` x ``group_width`` d: three stages with 256, 512 and 1024 channels.

    Each stage has (depth - 2) / 9 blocks with ``cardinality`` groups, of ``group_width`` channels in the first stage,
    doubled in each following stage. ``width`` is a factor on the channels of groups and stages; the stem keeps its 64.

    Example:
        >>> resnext(11, 2, 4, num_classes=10).feature_dim
        1024
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = nn.Sequential(
        nn.Conv2d(in_channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
    )
    current = 64
    for stage in range(3):
        inner = cardinality * scaled_channels(group_width * 2**stage, width)
        count = scaled_channels(256 * 2**stage, width)
        blocks = nn.Sequential()
        for block in range((depth - 2) // 9):
            stride = 2 if stage > 0 and block == 0 else 1
            blocks.append(AggregatedBlock(current, inner, count, stride, cardinality))
            current = count
        layers[f"stage{stage + 1}"] = blocks
    layers["pool"] = GlobalAveragePool()
    return with_classifier(nn.Sequential(layers), current, num_classes)
