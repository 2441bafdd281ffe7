"""Estimators and loss with the names and call signatures of the paper's published code."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

import isda
from isda.attach import find_classifier, weight_of
from isda.covariance import DiagonalCovariance, FullCovariance, OnlineCovariance


class PublishedEstimator(OnlineCovariance):
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


class FullEstimator(PublishedEstimator, FullCovariance):
    """Full covariances, as published for CIFAR."""

    @property
    def CoVariance(self) -> Tensor:
        """(C, A, A) covariance per class; a new tensor."""
        return torch.stack([self.covariance(index) for index in range(self.num_classes)])


class DiagonalEstimator(PublishedEstimator, DiagonalCovariance):
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


Estimator = TypeVar("Estimator", bound=PublishedEstimator)


class PublishedLoss(nn.Module, Generic[Estimator]):
    """A loss that is called with the model, or parts of it, and the current strength.

    Unlike the published losses it keeps its statistics in the state_dict, and in eval mode it is plain cross-entropy
    that changes nothing.

    Args:
        estimator: the statistics.
        options: of isda.ISDALoss.
    """

    def __init__(self, estimator: Estimator, **options: Any) -> None:
        super().__init__()
        self.criterion = isda.ISDALoss(estimator.num_classes, estimator.feature_dim, covariance=estimator, **options)

    @property
    def estimator(self) -> Estimator:
        """The statistics."""
        return cast("Estimator", self.criterion.covariance)

    def loss_of(
        self, features: Tensor, output: Tensor, target_x: Tensor, classifier: nn.Module, ratio: float
    ) -> Tensor:
        """The mean loss of a batch; the statistics follow the features to their device.

        Args:
            features: (N, A).
            output: (N, C) logits.
            target_x: (N,) labels.
            classifier: the last layer, or a module around it; may be wrapped for data parallel training.
            ratio: the current strength, lambda_0 times the share of training that is done.
        """
        self.to(features.device)
        weight = classifier_weight(classifier)
        loss: Tensor = self.criterion(output, target_x, features=features, weight=weight, strength=ratio)
        return loss
