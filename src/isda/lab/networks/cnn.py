"""Plain convolutional networks: CNN-13 of the semi-supervised experiments, and a narrow one for training on a CPU."""

from collections import OrderedDict

from torch import Tensor, nn

from isda.lab.networks.network import GlobalAveragePool, Network, dropout_rate, scaled_channels, with_classifier

# Two halvings, then a 3x3 convolution without padding.
SMALLEST_IMAGE = 12


def cnn_13(num_classes: int, in_channels: int = 3, width: float = 1.0, dropout: float = 0.5) -> Network:
    """Nine convolutions with leaky rectification (slope 0.1), two poolings with dropout, global average, classifier.

    The last 3x3 convolution has no padding, which makes the 6x6 maps of the paper's table from 32x32 images. The table
    leaves out the normalisation; as in the works it follows, batch normalisation comes before every rectification.

    Images must measure at least 12x12. ``dropout`` is the rate after each of the two poolings.

    Example:
        >>> cnn_13(num_classes=10, width=0.25).feature_dim
        32
    """
    rate = dropout_rate(dropout)
    wide = {count: scaled_channels(count, width) for count in (128, 256, 512)}
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["size"] = _SizeCheck()
    current = in_channels
    for stage, count in enumerate((128, 256), start=1):
        convolutions = nn.Sequential()
        for _ in range(3):
            convolutions.extend(_convolution(current, wide[count], kernel=3, padding=1))
            current = wide[count]
        layers[f"stage{stage}"] = convolutions
        layers[f"pool{stage}"] = nn.Sequential(nn.MaxPool2d(2), nn.Dropout(rate))
    layers["stage3"] = nn.Sequential(
        *_convolution(current, wide[512], kernel=3, padding=0),
        *_convolution(wide[512], wide[256], kernel=1, padding=0),
        *_convolution(wide[256], wide[128], kernel=1, padding=0),
    )
    layers["pool3"] = GlobalAveragePool()
    return with_classifier(nn.Sequential(layers), wide[128], num_classes)


def _convolution(in_channels: int, out_channels: int, kernel: int, padding: int) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, out_channels, kernel, padding=padding, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.LeakyReLU(0.1, inplace=True),
    ]


class _SizeCheck(nn.Module):
    """The identity; raises a ValueError for images that are too small for the network."""

    def forward(self, images: Tensor) -> Tensor:
        if min(images.shape[-2:]) < SMALLEST_IMAGE:
            raise ValueError(
                f"cnn-13 needs images of at least {SMALLEST_IMAGE}x{SMALLEST_IMAGE} pixels, "
                f"got {images.shape[-2]}x{images.shape[-1]}"
            )
        return images


class PooledBlock(nn.Module):
    """A 3x3 convolution followed at once by 2x2 max-pooling, then a residual 3x3 convolution at half resolution.

    Pooling before normalisation leaves a quarter of the positions to everything that follows, which is most of what
    makes the speed-run networks fast. ``dropout`` is the rate between the two convolutions.
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

    Images must measure at least 8x8. ``dropout`` is the rate inside every block.

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
