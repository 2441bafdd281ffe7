"""The ImageNet networks of the paper, and any classifier of torchvision by its name.

torchvision is imported when a network is built: it takes longer to import than the rest of this package.
"""

import math
from typing import Any

from torch import nn

from isda.lab.choices import did_you_mean
from isda.lab.networks.network import Network, dropout_rate, scaled_channels

TORCHVISION_PREFIX = "torchvision:"

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
    return _split(body, "fc")


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

    ``dropout`` is the rate after every dense layer, ``width`` a factor on the growth rate and the stem's channels.
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
    return _split(body, "classifier")


def torchvision_network(name: str, num_classes: int, in_channels: int = 3, **options: Any) -> Network:
    """Torchvision's classifier ``name`` with random weights; its last linear layer becomes the classifier.

    Example:
        >>> torchvision_network("shufflenet_v2_x0_5", num_classes=5).classifier
        Linear(in_features=1024, out_features=5, bias=True)
    """
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise ValueError(f"torchvision has no classifier {name!r}{did_you_mean(name, known)}")
    if in_channels != 3:
        raise ValueError(f"in_channels must be 3 for {TORCHVISION_PREFIX}{name}, got {in_channels}")
    try:
        body = models.get_model(name, weights=None, num_classes=num_classes, **options)
    except TypeError as error:
        raise ValueError(f"{TORCHVISION_PREFIX}{name} does not take the options {sorted(options)}: {error}") from error
    path, last = list(body.named_modules())[-1]
    if not isinstance(last, nn.Linear):
        raise ValueError(f"{TORCHVISION_PREFIX}{name} must end in a linear layer, it ends in {type(last).__name__}")
    return _split(body, path)


def _split(body: nn.Module, path: str) -> Network:
    """Take the linear classifier, a submodule by its path, out of torchvision's module."""
    parent, _, name = path.rpartition(".")
    holder = body.get_submodule(parent)
    classifier: Any = getattr(holder, name)
    setattr(holder, name, nn.Identity())
    return Network(body, classifier)
