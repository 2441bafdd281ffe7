"""The ImageNet networks of the paper, from torchvision's implementations and building blocks.

torchvision is imported when a network is built: it takes longer to import than the rest of this package.
"""

from collections.abc import Callable

from torch import nn

from isda.networks.arguments import dropout_rate
from isda.networks.initialisation import classifier_without_offset
from isda.networks.network import Network

__all__ = ["imagenet_densenet", "imagenet_resnet"]

# Layers in the four dense blocks (Huang et al., table 1); all have growth rate 32 and 64 channels after the stem.
# torchvision has no 265; Huang et al. call the same network DenseNet-264.
DENSE_BLOCKS = {121: (6, 12, 24, 16), 265: (6, 12, 64, 48)}


def imagenet_resnet(builder: str, num_classes: int, in_channels: int = 3) -> Network:
    """A residual network or ResNeXt for 224x224 images: torchvision's, with the classifier taken out of the body.

    Args:
        builder: the name of torchvision's function, e.g. "resnet50" or "resnext101_32x8d".
        num_classes: number of logits.
        in_channels: channels of the images.
    """
    from torchvision import models

    body = models.get_model(builder, weights=None, num_classes=num_classes)
    if in_channels != 3:
        body.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(body.conv1.weight, mode="fan_out", nonlinearity="relu")
    return _take_out(body, "fc", nn.Linear)


def imagenet_densenet(depth: int, num_classes: int, in_channels: int = 3, dropout: float = 0.0) -> Network:
    """A DenseNet-BC for 224x224 images, built by torchvision's ``DenseNet``.

    Args:
        depth: 121 or 265.
        num_classes: number of logits.
        in_channels: channels of the images.
        dropout: rate after every dense layer.
    """
    from torchvision.models import DenseNet

    body = DenseNet(
        growth_rate=32,
        block_config=DENSE_BLOCKS[depth],
        num_init_features=64,
        drop_rate=dropout_rate(dropout),
        num_classes=num_classes,
    )
    if in_channels != 3:
        stem = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(stem.weight)
        body.features.conv0 = stem
    return _take_out(body, "classifier", classifier_without_offset)


def _take_out(body: nn.Module, attribute: str, make_classifier: Callable[..., nn.Linear]) -> Network:
    """Move the linear classifier, which torchvision makes likewise, from inside the body to the top of a network."""
    classifier = getattr(body, attribute)
    setattr(body, attribute, nn.Identity())
    return Network(body, classifier, make_classifier)
