"""Residual networks for 32x32 images (He et al., CVPR 2016, section 4.2), with squeeze-and-excitation as an option
(Hu et al., CVPR 2018).
"""

from collections import OrderedDict

from torch import Tensor, nn

from isda.lab.networks.network import GlobalAveragePool, Network, dropout_rate, scaled_channels, with_classifier


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from all channel means: x * sigmoid(W2 relu(W1 mean(x))).

    The two layers have no bias, as in the publication's equation 3, and are 1x1 convolutions on the pooled
    1x1 map, so that a network's classifier stays its only ``nn.Linear``.

    The hidden layer has ``channels // reduction`` units (reduction 16 in the publication), at least 1.

    Example:
        >>> import torch
        >>> SqueezeExcitation(32)(torch.ones(2, 32, 8, 8)).shape
        torch.Size([2, 32, 8, 8])
    """

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.squeeze = nn.Conv2d(channels, hidden, kernel_size=1, bias=False)
        self.excite = nn.Conv2d(hidden, channels, kernel_size=1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Gate the channels of (N, channels, height, width)."""
        means = maps.mean(dim=(2, 3), keepdim=True)
        gate: Tensor = self.excite(self.squeeze(means).relu()).sigmoid()
        return maps * gate


def projection_shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """The identity, or a 1x1 convolution with batch normalisation where the shape changes."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, added and rectified.

    Shortcuts are option B of He et al.: the multiply-adds that the ISDA paper prints for ResNet-110 (254.20M) contain
    these projections.

    ``dropout`` is the rate between the two convolutions; ``gated`` puts squeeze-and-excitation on the residual branch.
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int = 1, dropout: float = 0.0, gated: bool = False
    ) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        if gated:
            self.residual.append(SqueezeExcitation(out_channels))
        self.shortcut = projection_shortcut(in_channels, out_channels, stride)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        total: Tensor = self.residual(maps) + self.shortcut(maps)
        return total.relu()


def resnet(
    depth: int,
    num_classes: int,
    in_channels: int = 3,
    width: float = 1.0,
    dropout: float = 0.0,
    gated: bool = False,
) -> Network:
    """A residual network of ``depth`` = 6n + 2 layers: three stages of n basic blocks with 16, 32 and 64 channels.

    ``dropout`` is the rate inside every block (the paper's "Basic + Dropout" of ResNet-110 uses 0.3); ``gated`` puts
    squeeze-and-excitation (reduction 16) on every residual branch.

    Example:
        >>> resnet(20, num_classes=10).feature_dim
        64
    """
    channels = [scaled_channels(count, width) for count in (16, 32, 64)]
    rate = dropout_rate(dropout)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = nn.Sequential(
        nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(channels[0]),
        nn.ReLU(inplace=True),
    )
    current = channels[0]
    for stage, count in enumerate(channels):
        blocks = nn.Sequential()
        for block in range((depth - 2) // 6):
            stride = 2 if stage > 0 and block == 0 else 1
            blocks.append(BasicBlock(current, count, stride, rate, gated))
            current = count
        layers[f"stage{stage + 1}"] = blocks
    layers["pool"] = GlobalAveragePool()
    return with_classifier(nn.Sequential(layers), current, num_classes)
