"""The ImageNet networks of the paper, from torchvision's implementations and building blocks.

torchvision is imported when a network is built: it takes longer to import than the rest of this package.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from isda.lab.networks.network import Network, classifier_with_zero_bias, dropout_rate, scaled_channels

# Blocks in the four stages, groups, and channels of a group in the first stage (torchvision's functions).
RESIDUAL_STAGES = {
    "resnet50": ((3, 4, 6, 3), 1, 64),
    "resnet101": ((3, 4, 23, 3), 1, 64),
    "resnet152": ((3, 8, 36, 3), 1, 64),
    "resnext50_32x4d": ((3, 4, 6, 3), 32, 4),
    "resnext101_32x8d": ((3, 4, 23, 3), 32, 8),
}
# Layers in the four dense blocks (Huang et al., table 1); all have growth rate 32 and 64 channels after the stem.
# torchvision has no 265; Huang et al. call the same network DenseNet-264.
DENSE_BLOCKS = {121: (6, 12, 24, 16), 265: (6, 12, 64, 48)}


def imagenet_resnet(builder: str, num_classes: int, in_channels: int = 3, width: float = 1.0) -> Network:
    """A residual network or ResNeXt for 224x224 images, built by torchvision.

    ``builder`` is the name of torchvision's function, e.g. "resnext101_32x8d". ``width`` is a factor on the channel
    counts of the stages; the stem keeps its 64.
    """
    from torchvision import models

    if width == 1:
        body = models.get_model(builder, weights=None, num_classes=num_classes)
    else:
        body = _scaled_resnet(builder, num_classes, width)
    if in_channels != 3:
        body.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
    return _split_classifier(body, "fc", nn.Linear)


def _scaled_resnet(builder: str, num_classes: int, width: float) -> nn.Module:
    """Torchvision's network with other channel counts, for which torchvision has no argument."""
    from torchvision.models.resnet import Bottleneck, ResNet

    class Scaled(ResNet):
        def _make_layer(self, block: type[Bottleneck], planes: int, *options: Any, **named: Any) -> nn.Sequential:
            return super()._make_layer(block, scaled_channels(planes, width), *options, **named)

    layers, groups, group_width = RESIDUAL_STAGES[builder]
    # A group has planes * width_per_group / 64 channels; at least one must be left.
    least = math.ceil(64 / scaled_channels(64, width))
    body = Scaled(Bottleneck, list(layers), groups=groups, width_per_group=max(group_width, least))
    body.fc = nn.Linear(body.inplanes, num_classes)
    return body


def imagenet_densenet(
    depth: int, num_classes: int, in_channels: int = 3, dropout: float = 0.0, width: float = 1.0
) -> Network:
    """A DenseNet-BC for 224x224 images, built by torchvision's ``DenseNet``.

    ``dropout`` is the rate after every dense layer, ``width`` a factor on the growth rate and on the channels of the
    stem.
    """
    from torchvision.models import DenseNet

    body = DenseNet(
        growth_rate=scaled_channels(32, width),
        block_config=DENSE_BLOCKS[depth],
        num_init_features=scaled_channels(64, width),
        drop_rate=dropout_rate(dropout),
        num_classes=num_classes,
    )
    if in_channels != 3:
        stem = nn.Conv2d(in_channels, scaled_channels(64, width), 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(stem.weight)
        body.features.conv0 = stem
    return _split_classifier(body, "classifier", classifier_with_zero_bias)


def _split_classifier(body: nn.Module, attribute: str, make_classifier: Callable[..., nn.Linear]) -> Network:
    """Move the linear classifier out of torchvision's module."""
    classifier = getattr(body, attribute)
    setattr(body, attribute, nn.Identity())
    return Network(body, classifier, make_classifier)
