"""What every network of this package is: a body that makes features, and a linear classifier on top of them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from typing_extensions import Self

from isda.networks.arguments import positive_integer

__all__ = ["GlobalAveragePool", "Network"]


class Network(nn.Module):
    """A body that maps images to feature vectors and a linear classifier that maps those to logits.

    The body comes first in the module tree and the classifier last, and the classifier is the network's only
    ``nn.Linear`` in every family of this package, so that code that looks for "the head" finds it.

    Args:
        body: maps images (N, channels, height, width) to features (N, A).
        classifier: maps features (N, A) to logits (N, C).
        make_classifier: makes another classifier as the family initialises it; called as ``nn.Linear`` is.

    Example:
        >>> from isda import networks
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
        """The last layer, under the name that timm gives this question."""
        return self.classifier

    def reset_classifier(self, num_classes: int) -> None:
        """Put a new classifier for ``num_classes`` on the same features, e.g. to train on other classes (as in timm).

        It is initialised as the family initialises it, with a bias if the old one has one, on its device and in its
        dtype. An optimiser or a criterion that was made for the old one does not know it: make or attach it anew.
        """
        positive_integer("num_classes", num_classes)
        old = self.classifier
        self.classifier = self.make_classifier(
            old.in_features,
            num_classes,
            bias=old.bias is not None,
            device=old.weight.device,
            dtype=old.weight.dtype,
        ).train(old.training)

    def freeze_body(self) -> None:
        """From now on only the classifier learns: the body has no gradients and stays in eval mode.

        Example:
            >>> from isda import networks
            >>> network = networks.create("resnet-8", num_classes=10)
            >>> network.freeze_body()
            >>> network.train().body.training, network.classifier.training
            (False, True)
        """
        self.frozen = True
        self.body.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """Training or eval mode; a frozen body, and with it its running figures of batch norm, stays in eval mode."""
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
