"""The initialisation that the original publications of all our networks share."""

from typing import Any

from torch import nn

from isda.networks.network import Network

__all__ = ["classifier_without_offset", "initialise", "with_classifier"]


def classifier_without_offset(feature_dim: int, num_classes: int, **options: Any) -> nn.Linear:
    """A linear classifier whose bias, if it has one, starts at zero; takes what ``nn.Linear`` takes.

    Example:
        >>> classifier_without_offset(4, 3).bias.tolist()
        [0.0, 0.0, 0.0]
    """
    classifier = nn.Linear(feature_dim, num_classes, **options)
    if classifier.bias is not None:
        nn.init.zeros_(classifier.bias)
    return classifier


def initialise(body: nn.Module) -> None:
    """Initialise convolutions and batch normalisation in place.

    Convolutions draw from a normal distribution with variance 2 / (kernel area x output channels) (He et al.,
    "Delving deep into rectifiers", 2015, backward form), the choice of the ResNet, Wide-ResNet, ResNeXt, DenseNet and
    Shake-Shake code; batch normalisation starts as the identity.

    Example:
        >>> layer = nn.Conv2d(3, 4, 8)
        >>> initialise(layer)
        >>> layer.bias.abs().max().item()
        0.0
    """
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def with_classifier(body: nn.Module, feature_dim: int, num_classes: int) -> Network:
    """Put a linear classifier on a body and initialise the whole network as its publication did.

    The body as in :func:`initialise`; the classifier starts with a bias of zero.

    Args:
        body: maps images to features (N, feature_dim).
        feature_dim: number of features.
        num_classes: number of logits.

    Example:
        >>> network = with_classifier(nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten()), feature_dim=4, num_classes=10)
        >>> network.classifier.bias.abs().max().item()
        0.0
    """
    initialise(body)
    return Network(body, classifier_without_offset(feature_dim, num_classes), classifier_without_offset)
