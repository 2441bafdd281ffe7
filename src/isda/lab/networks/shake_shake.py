"""Shake-Shake networks (Gastaldi, "Shake-shake regularization", 2017), the "Shake-Shake-Image" variant."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from isda.lab.networks.network import GlobalAveragePool, Network, scaled_channels, with_classifier


def shake(left: Tensor, right: Tensor, forward_share: Tensor, backward_share: Tensor) -> Tensor:
    """Mix two branches with one share in the forward pass and another in the backward pass.

    The value is a left + (1 - a) right with a the forward share; the gradients are b and 1 - b times the incoming
    gradient with b the backward share.

    Branches are (N, channels, H, W), shares (N, 1, 1, 1): one per sample.

    Example:
        >>> left, right = torch.ones(1, 1, 1, 1, requires_grad=True), torch.zeros(1, 1, 1, 1)
        >>> mixed = shake(left, right, torch.full((1, 1, 1, 1), 0.25), torch.full((1, 1, 1, 1), 0.75))
        >>> mixed.backward()
        >>> mixed.item(), left.grad.item()
        (0.25, 0.75)
    """
    with_gradient = torch.lerp(right, left, backward_share)
    # The difference is a constant for the backward pass: value of the forward mix, gradient of the backward mix.
    return with_gradient + (torch.lerp(right, left, forward_share) - with_gradient).detach()


class ShiftedShortcut(nn.Module):
    """Shortcut where the shape changes: two strided samplings, one shifted by a pixel, each with a 1x1 convolution."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.direct = nn.Conv2d(in_channels, out_channels // 2, 1, bias=False)
        self.shifted = nn.Conv2d(in_channels, out_channels - out_channels // 2, 1, bias=False)
        self.normalise = nn.BatchNorm2d(out_channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        rectified = maps.relu()
        # One pixel up and to the left; zeros enter at the far edges.
        moved = pad(rectified[:, :, 1:, 1:], (0, 1, 0, 1))
        step = self.stride
        parts = (self.direct(rectified[:, :, ::step, ::step]), self.shifted(moved[:, :, ::step, ::step]))
        normalised: Tensor = self.normalise(torch.cat(parts, dim=1))
        return normalised


class ShakeBlock(nn.Module):
    """Two residual branches whose outputs are mixed at random for every image, beside a shortcut.

    In training, both shares are drawn from U(0, 1) independently for every sample, and independently of each other;
    in evaluation both are their expectation, 0.5.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.left = _branch(in_channels, out_channels, stride)
        self.right = _branch(in_channels, out_channels, stride)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = ShiftedShortcut(in_channels, out_channels, stride)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        left: Tensor = self.left(maps)
        right: Tensor = self.right(maps)
        if self.training:
            shares = torch.rand(2, len(left), 1, 1, 1, dtype=left.dtype, device=left.device)
            mixed = shake(left, right, shares[0], shares[1])
        else:
            mixed = (left + right) / 2
        shortcut: Tensor = self.shortcut(maps)
        return shortcut + mixed


def _branch(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
    )


def shake_shake(depth: int, base_width: int, num_classes: int, in_channels: int = 3, width: float = 1.0) -> Network:
    """Shake-Shake (``depth``, 2 x ``base_width`` d): three stages of (depth - 2) / 6 two-branch blocks.

    The stages have w, 2w and 4w channels for a ``base_width`` of w. ``width`` is a factor on them; the stem keeps its
    16.

    Example:
        >>> shake_shake(8, 4, num_classes=10).feature_dim
        16
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = nn.Sequential(nn.Conv2d(in_channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
    current = 16
    for stage in range(3):
        count = max(2, scaled_channels(base_width * 2**stage, width))  # a shortcut has two halves
        blocks = nn.Sequential()
        for block in range((depth - 2) // 6):
            blocks.append(ShakeBlock(current, count, 2 if stage > 0 and block == 0 else 1))
            current = count
        layers[f"stage{stage + 1}"] = blocks
    layers["activation"] = nn.ReLU(inplace=True)
    layers["pool"] = GlobalAveragePool()
    return with_classifier(nn.Sequential(layers), current, num_classes)
