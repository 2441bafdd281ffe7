"""The base class :class:`Network`, argument checks, initialisation, eval mode and layer-wise rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from isda._utils.checks import positive_integer


def dropout_rate(value: object) -> float:
    """Return ``value`` if it is a probability below 1.

    Example:
        >>> dropout_rate(0.3)
        0.3
    """
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

    The body comes first in the module tree and the classifier last, and the classifier is the network's only
    ``nn.Linear`` in every family of this package, so that code that looks for "the head" finds it.

    Args:
        body: maps images (N, channels, height, width) to features (N, A).
        classifier: maps features (N, A) to logits (N, C).
        make_classifier: makes another classifier as the family initialises it; called as ``nn.Linear`` is.

    Example:
        >>> from isda.lab import networks
        >>> network = networks.create("resnet-8", num_classes=10)
        >>> images = torch.zeros(2, 3, 32, 32)
        >>> features = network.features(images)
        >>> features.shape, network.feature_dim
        (torch.Size([2, 64]), 64)
        >>> torch.equal(network(images), network.classifier(network.features(images)))
        True
        >>> network.reset_classifier(3)
        >>> network.get_classifier()
        Linear(in_features=64, out_features=3, bias=True)
    """

    def __init__(
        self, body: nn.Module, classifier: nn.Linear, make_classifier: Callable[..., nn.Linear] = nn.Linear
    ) -> None:
        super().__init__()
        self.body = body
        self.classifier = classifier
        self.make_classifier = make_classifier
        self.frozen = False

    @property
    def feature_dim(self) -> int:
        """The number of features A that the classifier reads."""
        return self.classifier.in_features

    def get_classifier(self) -> nn.Linear:
        """The classifier; the method has the name of timm's."""
        return self.classifier

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the classifier by a new one for ``num_classes``, as timm's method of this name does.

        The new one is initialised as the family does it, with a bias if the old one has one, on its device and in its
        dtype. An optimiser or criterion that was made for the old classifier must be made anew.
        """
        positive_integer("num_classes", num_classes)
        old = self.classifier
        self.classifier = self.make_classifier(
            old.in_features, num_classes, bias=old.bias is not None, device=old.weight.device, dtype=old.weight.dtype
        ).train(old.training)

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
    """The mean of each channel over all positions: (N, A, height, width) to (N, A), whatever the image size.

    Example:
        >>> GlobalAveragePool()(torch.ones(2, 3, 4, 5)).shape
        torch.Size([2, 3])
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Average over height and width."""
        return torch.mean(maps, dim=(2, 3))


def classifier_with_zero_bias(feature_dim: int, num_classes: int, **options: Any) -> nn.Linear:
    """A linear classifier whose bias, if it has one, starts at zero; takes what ``nn.Linear`` takes.

    Example:
        >>> classifier_with_zero_bias(4, 3).bias.tolist()
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

    Example:
        >>> network = with_classifier(nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten()), feature_dim=4, num_classes=10)
        >>> network.classifier.bias.abs().max().item()
        0.0
    """
    initialise(body)
    return Network(body, classifier_with_zero_bias(feature_dim, num_classes), classifier_with_zero_bias)


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
        >>> rates[network.body.conv1[0].weight]
        0.03125
    """
    depths = _layer_depths(network.body)
    top = max(depths.values(), default=-1) + 1
    rates = {parameter: decay ** (top - depths[name]) for name, parameter in network.body.named_parameters()}
    return rates | dict.fromkeys(network.classifier.parameters(), 1.0)


def _layer_depths(body: Any) -> dict[str, int]:
    """The index of the layer of each parameter, from the input on."""
    if hasattr(body, "group_matcher"):
        from timm.models import group_parameters

        numbers: dict[str, int] = group_parameters(body, body.group_matcher(coarse=False), reverse=True)
    else:
        order: dict[str, int] = {}
        numbers = {name: order.setdefault(name.partition(".")[0], len(order)) for name, _ in body.named_parameters()}
    # Without gaps: the classifier may have been a layer of its own.
    dense = {number: position for position, number in enumerate(sorted(set(numbers.values())))}
    return {name: dense[number] for name, number in numbers.items()}
