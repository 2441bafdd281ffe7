"""CNN-13, the network of semi-supervised experiments (the paper's appendix, table "network architecture of CNN-13")."""

from collections import OrderedDict

from torch import Tensor, nn

from isda.networks.arguments import dropout_rate, scaled_channels
from isda.networks.initialisation import with_classifier
from isda.networks.network import GlobalAveragePool, Network

__all__ = ["cnn_13"]

# Two halvings, then a 3x3 convolution without padding.
SMALLEST_IMAGE = 12


def cnn_13(num_classes: int, in_channels: int = 3, width: float = 1.0, dropout: float = 0.5) -> Network:
    """Nine convolutions with leaky rectification (slope 0.1), two poolings with dropout, global average, classifier.

    The last 3x3 convolution has no padding, which makes the 6x6 maps of the paper's table from 32x32 images. The table
    leaves out the normalisation; as in the works it follows, batch normalisation comes before every rectification.

    Args:
        num_classes: number of logits.
        in_channels: channels of the images, which must measure at least 12x12.
        width: factor on all channel counts.
        dropout: rate after each of the two poolings.

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
    """Passes images on, or says that they are too small for the network."""

    def forward(self, images: Tensor) -> Tensor:
        if min(images.shape[-2:]) < SMALLEST_IMAGE:
            raise ValueError(
                f"cnn-13 needs images of at least {SMALLEST_IMAGE}x{SMALLEST_IMAGE} pixels, "
                f"got {images.shape[-2]}x{images.shape[-1]}"
            )
        return images
