"""Networks for images of about 32x32 pixels: residual, wide, aggregated, dense, Shake-Shake and plain ones.

Each builder takes ``in_channels``, ``width`` (a factor on the channel counts of its stages) and, where its publication
has it, ``dropout`` (a rate).
"""

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from isda.lab.networks.network import GlobalAveragePool, Network, dropout_rate, scaled_channels, with_classifier


def convolution(in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the resolution at stride 1."""
    return nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False)


def rectified(in_channels: int, out_channels: int) -> nn.Sequential:
    """A 3x3 convolution, batch normalisation and rectification."""
    return nn.Sequential(convolution(in_channels, out_channels), nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))


def activation(channels: int) -> nn.Sequential:
    """Batch normalisation and rectification."""
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def stage(
    block: Callable[[int, int, int], nn.Module], in_channels: int, out_channels: int, count: int, stride: int
) -> nn.Sequential:
    """``count`` blocks, called as (in_channels, out_channels, stride); the first changes channels and resolution."""
    first = block(in_channels, out_channels, stride)
    return nn.Sequential(first, *(block(out_channels, out_channels, 1) for _ in range(count - 1)))


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from all channel means: x * sigmoid(W2 relu(W1 mean(x))).

    Hu et al., CVPR 2018. The two layers have no bias (equation 3) and are 1x1 convolutions, so that a network's
    classifier stays its only ``nn.Linear``. The hidden layer has ``channels // reduction`` units, at least 1.

    Example:
        >>> SqueezeExcitation(32)(torch.ones(2, 32, 8, 8)).shape
        torch.Size([2, 32, 8, 8])
    """

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.squeeze = convolution(channels, hidden, kernel=1)
        self.excite = convolution(hidden, channels, kernel=1)

    def forward(self, maps: Tensor) -> Tensor:
        """Gate the channels of (N, channels, height, width)."""
        means = maps.mean(dim=(2, 3), keepdim=True)
        gate: Tensor = self.excite(self.squeeze(means).relu()).sigmoid()
        return maps * gate


class ResidualBlock(nn.Module):
    """A residual branch beside a shortcut, added and rectified (He et al., CVPR 2016, option B).

    The shortcut is a 1x1 convolution where the shape changes: the multiply-adds that the ISDA paper prints for
    ResNet-110 (254.20M) contain these projections.
    """

    def __init__(self, residual: nn.Sequential, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = residual
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                convolution(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels)
            )

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        total: Tensor = self.residual(maps) + self.shortcut(maps)
        return total.relu()


def basic_block(
    in_channels: int, out_channels: int, stride: int = 1, dropout: float = 0.0, gated: bool = False
) -> ResidualBlock:
    """Two 3x3 convolutions, with dropout between them; ``gated`` adds squeeze-and-excitation."""
    residual = nn.Sequential(
        convolution(in_channels, out_channels, 3, stride),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        convolution(out_channels, out_channels),
        nn.BatchNorm2d(out_channels),
    )
    if gated:
        residual.append(SqueezeExcitation(out_channels))
    return ResidualBlock(residual, in_channels, out_channels, stride)


def resnet(
    depth: int, num_classes: int, in_channels: int = 3, width: float = 1.0, dropout: float = 0.0, gated: bool = False
) -> Network:
    """A residual network of ``depth`` = 6n + 2 layers: three stages of n basic blocks with 16, 32 and 64 channels.

    He et al., "Deep residual learning for image recognition", CVPR 2016, section 4.2. ``dropout`` is the rate inside
    every block (the paper's "Basic + Dropout" of ResNet-110 uses 0.3).

    Example:
        >>> resnet(20, num_classes=10).feature_dim
        64
    """
    first, second, third = (scaled_channels(channels, width) for channels in (16, 32, 64))
    rate, count = dropout_rate(dropout), (depth - 2) // 6

    def block(before: int, after: int, stride: int) -> ResidualBlock:
        return basic_block(before, after, stride, rate, gated)

    layers = OrderedDict[str, nn.Module](
        stem=rectified(in_channels, first),
        stage1=stage(block, first, first, count, 1),
        stage2=stage(block, first, second, count, 2),
        stage3=stage(block, second, third, count, 2),
        pool=GlobalAveragePool(),
    )
    return with_classifier(nn.Sequential(layers), third, num_classes)


class WideBlock(nn.Module):
    """Pre-activation block: normalise, rectify, convolve; dropout between the two 3x3 convolutions.

    Where the shape changes, both the residual branch and the 1x1 shortcut read the normalised and rectified input.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.activation = activation(in_channels)
        self.residual = nn.Sequential(
            convolution(in_channels, out_channels, 3, stride),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            convolution(out_channels, out_channels),
        )
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = convolution(in_channels, out_channels, 1, stride)

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

    Zagoruyko and Komodakis, "Wide residual networks", BMVC 2016. ``dropout`` is the rate inside every block.

    Example:
        >>> wide_resnet(10, 2, num_classes=10).feature_dim
        128
    """
    first, second, third = (scaled_channels(channels * widening, width) for channels in (16, 32, 64))
    rate, count = dropout_rate(dropout), (depth - 4) // 6

    def block(before: int, after: int, stride: int) -> WideBlock:
        return WideBlock(before, after, stride, rate)

    layers = OrderedDict[str, nn.Module](
        stem=convolution(in_channels, 16),
        stage1=stage(block, 16, first, count, 1),
        stage2=stage(block, first, second, count, 2),
        stage3=stage(block, second, third, count, 2),
        activation=activation(third),
        pool=GlobalAveragePool(),
    )
    return with_classifier(nn.Sequential(layers), third, num_classes)


def wide_resnet_28_10(num_classes: int, in_channels: int = 3, dropout: float = 0.3, width: float = 1.0) -> Network:
    """Wide-ResNet-28-10 with dropout by default.

    "All the results with Wide-ResNet-28-10 use the dropout technique" (the ISDA paper, section 6.2). The rate is that
    of the network's own publication on CIFAR, which is also what the ISDA paper adds to networks without dropout.
    """
    return wide_resnet(28, 10, num_classes, in_channels, dropout, width)


def aggregated_block(in_channels: int, inner: int, out_channels: int, stride: int, groups: int) -> ResidualBlock:
    """Bottleneck whose 3x3 convolution works in groups: 1x1, grouped 3x3, 1x1."""
    residual = nn.Sequential(
        convolution(in_channels, inner, 1),
        nn.BatchNorm2d(inner),
        nn.ReLU(inplace=True),
        convolution(inner, inner, 3, stride, groups),
        nn.BatchNorm2d(inner),
        nn.ReLU(inplace=True),
        convolution(inner, out_channels, 1),
        nn.BatchNorm2d(out_channels),
    )
    return ResidualBlock(residual, in_channels, out_channels, stride)


def resnext(
    depth: int, cardinality: int, group_width: int, num_classes: int, in_channels: int = 3, width: float = 1.0
) -> Network:
    """ResNeXt-``depth``, ``cardinality`` x ``group_width`` d: three stages with 256, 512 and 1024 channels.

    Xie et al., "Aggregated residual transformations", CVPR 2017, section 5.3. Each stage has (depth - 2) / 9 blocks
    with ``cardinality`` groups, of ``group_width`` channels in the first stage, doubled in each following one.

    Example:
        >>> resnext(11, 2, 4, num_classes=10).feature_dim
        1024
    """
    current = 64
    layers = OrderedDict[str, nn.Module](stem=rectified(in_channels, current))
    for number in range(3):
        inner = cardinality * scaled_channels(group_width * 2**number, width)
        channels = scaled_channels(256 * 2**number, width)

        def block(before: int, after: int, stride: int, inner: int = inner) -> ResidualBlock:
            return aggregated_block(before, inner, after, stride, cardinality)

        layers[f"stage{number + 1}"] = stage(block, current, channels, (depth - 2) // 9, 2 if number else 1)
        current = channels
    layers["pool"] = GlobalAveragePool()
    return with_classifier(nn.Sequential(layers), current, num_classes)


class DenseLayer(nn.Module):
    """Bottleneck layer: 1x1 convolution to 4k channels, 3x3 to k, appended to the input.

    Each convolution reads normalised and rectified maps; dropout, if any, follows each convolution.
    """

    def __init__(self, in_channels: int, growth: int, dropout: float) -> None:
        super().__init__()
        self.added = nn.Sequential(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(inplace=True),
            convolution(in_channels, 4 * growth, 1),
            nn.Dropout(dropout),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            convolution(4 * growth, growth),
            nn.Dropout(dropout),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, in_channels + growth, H, W)."""
        return torch.cat((maps, self.added(maps)), dim=1)


def densenet(
    depth: int, growth: int, num_classes: int, in_channels: int = 3, dropout: float = 0.0, width: float = 1.0
) -> Network:
    """DenseNet-BC-``depth``-``growth``: three dense blocks of (depth - 4) / 6 bottleneck layers, compression 0.5.

    Huang et al., "Densely connected convolutional networks", CVPR 2017. ``width`` is a factor on the growth rate,
    ``dropout`` the rate after every convolution except the first (0.2 in the publication without augmentation).

    Example:
        >>> densenet(40, 12, num_classes=10).feature_dim
        132
    """
    rate, growth = dropout_rate(dropout), scaled_channels(growth, width)
    current = 2 * growth
    layers = OrderedDict[str, nn.Module](stem=convolution(in_channels, current))
    for number in range(1, 4):
        if number > 1:
            layers[f"transition{number - 1}"] = nn.Sequential(
                nn.BatchNorm2d(current),
                nn.ReLU(inplace=True),
                convolution(current, current // 2, 1),
                nn.Dropout(rate),
                nn.AvgPool2d(2),
            )
            current //= 2
        dense = nn.Sequential()
        for _ in range((depth - 4) // 6):
            dense.append(DenseLayer(current, growth, rate))
            current += growth
        layers[f"block{number}"] = dense
    layers["activation"] = activation(current)
    layers["pool"] = GlobalAveragePool()
    return with_classifier(nn.Sequential(layers), current, num_classes)


def shake(left: Tensor, right: Tensor, forward_share: Tensor, backward_share: Tensor) -> Tensor:
    """Mix two branches with one share in the forward pass and another in the backward pass.

    The value is a left + (1 - a) right with a the forward share; the gradients are b and 1 - b times the incoming
    gradient with b the backward share. Branches are (N, channels, H, W), shares (N, 1, 1, 1): one per sample.

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
        self.direct = convolution(in_channels, out_channels // 2, 1)
        self.shifted = convolution(in_channels, out_channels - out_channels // 2, 1)
        self.normalise = nn.BatchNorm2d(out_channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        maps = maps.relu()
        # One pixel up and to the left; zeros enter at the far edges.
        moved = pad(maps[:, :, 1:, 1:], (0, 1, 0, 1))
        step = self.stride
        parts = (self.direct(maps[:, :, ::step, ::step]), self.shifted(moved[:, :, ::step, ::step]))
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
        convolution(in_channels, out_channels, 3, stride),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
        convolution(out_channels, out_channels),
        nn.BatchNorm2d(out_channels),
    )


def shake_shake(depth: int, base_width: int, num_classes: int, in_channels: int = 3, width: float = 1.0) -> Network:
    """Shake-Shake (``depth``, 2 x ``base_width`` d): three stages of (depth - 2) / 6 two-branch blocks.

    Gastaldi, "Shake-shake regularization", 2017, the "Shake-Shake-Image" variant. The stages have w, 2w and 4w
    channels for a ``base_width`` of w.

    Example:
        >>> shake_shake(8, 4, num_classes=10).feature_dim
        16
    """
    # A shortcut has two halves.
    first, second, third = (max(2, scaled_channels(base_width * factor, width)) for factor in (1, 2, 4))
    count = (depth - 2) // 6
    layers = OrderedDict[str, nn.Module](
        stem=nn.Sequential(convolution(in_channels, 16), nn.BatchNorm2d(16)),
        stage1=stage(ShakeBlock, 16, first, count, 1),
        stage2=stage(ShakeBlock, first, second, count, 2),
        stage3=stage(ShakeBlock, second, third, count, 2),
        activation=nn.ReLU(inplace=True),
        pool=GlobalAveragePool(),
    )
    return with_classifier(nn.Sequential(layers), third, num_classes)


def cnn_13(num_classes: int, in_channels: int = 3, width: float = 1.0, dropout: float = 0.5) -> Network:
    """Nine convolutions with leaky rectification (slope 0.1), two poolings with dropout, global average, classifier.

    The last 3x3 convolution has no padding, which makes the 6x6 maps of the paper's table from 32x32 images; images
    must measure at least 12x12. The table leaves out the normalisation; as in the works it follows, batch
    normalisation comes before every rectification. ``dropout`` is the rate after each of the two poolings.

    Example:
        >>> cnn_13(num_classes=10, width=0.25).feature_dim
        32
    """
    rate = dropout_rate(dropout)
    narrow, middle, wide = (scaled_channels(channels, width) for channels in (128, 256, 512))

    def layer(before: int, after: int, kernel: int = 3, padding: int = 1) -> list[nn.Module]:
        convolved = nn.Conv2d(before, after, kernel, padding=padding, bias=False)
        return [convolved, nn.BatchNorm2d(after), nn.LeakyReLU(0.1, inplace=True)]

    layers = OrderedDict[str, nn.Module](
        stage1=nn.Sequential(*layer(in_channels, narrow), *layer(narrow, narrow), *layer(narrow, narrow)),
        pool1=nn.Sequential(nn.MaxPool2d(2), nn.Dropout(rate)),
        stage2=nn.Sequential(*layer(narrow, middle), *layer(middle, middle), *layer(middle, middle)),
        pool2=nn.Sequential(nn.MaxPool2d(2), nn.Dropout(rate)),
        stage3=nn.Sequential(*layer(middle, wide, 3, 0), *layer(wide, middle, 1, 0), *layer(middle, narrow, 1, 0)),
        pool3=GlobalAveragePool(),
    )
    return with_classifier(nn.Sequential(layers), narrow, num_classes)


class PooledBlock(nn.Module):
    """A 3x3 convolution followed at once by 2x2 max-pooling, then a residual 3x3 convolution at half resolution.

    Pooling before normalisation leaves a quarter of the positions to everything that follows.
    """

    def __init__(self, in_channels: int, out_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.reduce = nn.Sequential(
            convolution(in_channels, out_channels),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )
        self.residual = rectified(out_channels, out_channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H / 2, W / 2)."""
        reduced: Tensor = self.reduce(maps)
        residual: Tensor = self.residual(self.dropout(reduced))
        return reduced + residual


def fast_cnn(num_classes: int, in_channels: int = 3, width: float = 1.0, dropout: float = 0.0) -> Network:
    """A stem and three pooled blocks with 32, 64 and 128 channels, global average, classifier.

    Our own design in the spirit of the published CIFAR-10 speed-run networks (few layers, early pooling), narrowed
    until a step is cheap on one core. Images must measure at least 8x8. ``dropout`` is the rate inside every block.

    Example:
        >>> fast_cnn(num_classes=10).feature_dim
        128
    """
    stem, first, second, third = (scaled_channels(channels, width) for channels in (16, 32, 64, 128))
    rate = dropout_rate(dropout)
    layers = OrderedDict[str, nn.Module](
        stem=rectified(in_channels, stem),
        block1=PooledBlock(stem, first, rate),
        block2=PooledBlock(first, second, rate),
        block3=PooledBlock(second, third, rate),
        pool=GlobalAveragePool(),
    )
    return with_classifier(nn.Sequential(layers), third, num_classes)
