"""The covariance models under the names of the published code, and the weight of the layers it passes around."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isda.attach import find_classifier
from isda.covariance import DiagonalCovariance, FullCovariance, OnlineCovariance
from isda.recording import weight_of

__all__ = ["DiagonalEstimator", "FullEstimator", "PublishedNames", "classifier_weight"]


class PublishedNames(OnlineCovariance):
    """Ave, Amount and update_CV; the arguments in the published order."""

    def __init__(self, feature_num: int, class_num: int, device: torch.device | str | None = None) -> None:
        super().__init__(class_num, feature_num, device=device)

    @property
    def Ave(self) -> Tensor:
        """(C, A) mean feature per class."""
        return self.mean

    @property
    def Amount(self) -> Tensor:
        """(C,) number of features seen per class."""
        return self.count

    def update_CV(self, features: Tensor, labels: Tensor) -> None:
        """Absorb features (N, A) of the classes ``labels`` (N,)."""
        self.update(features, labels)


class FullEstimator(PublishedNames, FullCovariance):
    """Full covariances, as published for CIFAR."""

    @property
    def CoVariance(self) -> Tensor:
        """(C, A, A) covariance per class; a new tensor."""
        return torch.stack([self.covariance(index) for index in range(self.num_classes)])


class DiagonalEstimator(PublishedNames, DiagonalCovariance):
    """Variances only, as published for ImageNet and Cityscapes."""

    @property
    def CoVariance(self) -> Tensor:
        """(C, A) variances per class; a new tensor."""
        return self.variance(torch.arange(self.num_classes, device=self.scatter.device))


def classifier_weight(model: nn.Module) -> Tensor:
    """The weight of the last layer of ``model``, which may be that layer, a wrapper of it, or a whole network."""
    while isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        model = model.module
    linear = [module for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
    return weight_of(find_classifier(model, linear[0] if len(linear) == 1 else None))
