"""The base class :class:`Network`, its initialisation, and layer-wise learning rates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self


def dropout_rate(value: object) -> float:
    """Return ``value`` if it is a probability below 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"dropout must be a number in [0, 1), got {value!r}")
    return float(value)


def scaled_channels(channels: int, width: object) -> int:
    """The channel count times the width factor, rounded, at least 1.

    Example:
        >>> scaled_channels(128, 0.25)
        32
    """
    if not isinstance(width, int | float) or isinstance(width, bool) or not 0 < width < float("inf"):
        raise ValueError(f"width must be a positive number, got {width!r}")
    return max(1, round(channels * width))


class Network(nn.Module):
    """A body that maps images to feature vectors and a linear classifier that maps those to logits.

    The classifier comes last in the module tree, and is the only ``nn.Linear`` of every network of this package.

    Args:
        body: maps images (N, channels, height, width) to features (N, A).
        classifier: maps features (N, A) to logits (N, C).

    Example:
        >>> from isda.lab import networks
        >>> network = networks.create("resnet-8", num_classes=10)
        >>> images = torch.zeros(2, 3, 32, 32)
        >>> features = network.features(images)
        >>> features.shape, network.feature_dim
        (torch.Size([2, 64]), 64)
        >>> torch.equal(network(images), network.classifier(features))
        True
    """

    def __init__(self, body: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.classifier = classifier
        self.frozen = False

    @property
    def feature_dim(self) -> int:
        """The number of features A that the classifier reads."""
        return self.classifier.in_features

    def get_classifier(self) -> nn.Linear:
        """The classifier; the method has the name of timm's."""
        return self.classifier

    def freeze_body(self) -> None:
        """Train only the classifier from now on: the body gets no gradients and stays in eval mode.

        Example:
            >>> from isda.lab import networks
            >>> network = networks.create("resnet-8", num_classes=10)
            >>> network.freeze_body()
            >>> network.train().body.training, network.classifier.training
            (False, True)
        """
        self.frozen = True
        self.body.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Training or eval mode; a frozen body, and so its running statistics of batch norm, stays in eval mode."""
        super().train(mode)
        if self.frozen:
            self.body.eval()
        return self

    def features(self, images: Tensor) -> Tensor:
        """The deep features (N, A) of images (N, channels, height, width)."""
        features: Tensor = self.body(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        """The logits (N, C) of images (N, channels, height, width): the classifier of the features."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


class GlobalAveragePool(nn.Module):
    """The mean of each channel over all positions: (N, A, height, width) to (N, A), whatever the image size."""

    def forward(self, maps: Tensor) -> Tensor:
        """Average over height and width."""
        return torch.mean(maps, dim=(2, 3))


def initialise(body: nn.Module) -> None:
    """Initialise convolutions and batch normalisation in place.

    Convolutions draw from a normal distribution with variance 2 / (kernel area x output channels) (He et al.,
    "Delving deep into rectifiers", 2015, backward form), the choice of the ResNet, Wide-ResNet, ResNeXt, DenseNet and
    Shake-Shake code; batch normalisation starts as the identity.
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
    """Put a linear classifier on a body and initialise both; the bias of the classifier starts at zero.

    Example:
        >>> network = with_classifier(nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten()), feature_dim=4, num_classes=10)
        >>> network.classifier.bias.abs().max().item()
        0.0
    """
    initialise(body)
    classifier = nn.Linear(feature_dim, num_classes)
    nn.init.zeros_(classifier.bias)
    return Network(body, classifier)


def layer_rate_factors(network: Network, decay: float) -> dict[nn.Parameter, float]:
    """The factor on the learning rate of each parameter: decay^k for the k-th layer below the classifier.

    A layer is a block of timm's grouping, or a child of the body for other networks. The factor of the classifier is 1
    (Howard and Ruder, 2018, in the form of BEiT).

    Example:
        >>> from isda.lab import networks
        >>> network = networks.create("timm:test_resnet", num_classes=3)
        >>> rates = layer_rate_factors(network, 0.5)
        >>> rates[network.classifier.weight], rates[network.body.layer4[0].conv1.weight]
        (1.0, 0.5)
    """
    body: Any = network.body
    if hasattr(body, "group_matcher"):
        from timm.models import group_parameters

        layer_of: dict[str, int] = group_parameters(body, body.group_matcher(coarse=False), reverse=True)
    else:
        order: dict[str, int] = {}
        layer_of = {name: order.setdefault(name.partition(".")[0], len(order)) for name, _ in body.named_parameters()}
    # Without gaps: the classifier may have been a layer of its own.
    layers = sorted(set(layer_of.values()))
    rates = {
        parameter: decay ** (len(layers) - layers.index(layer_of[name])) for name, parameter in body.named_parameters()
    }
    return rates | dict.fromkeys(network.classifier.parameters(), 1.0)
