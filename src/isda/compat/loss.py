"""What the published losses share: one ISDALoss, whose statistics go by the published names."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from torch import Tensor, nn

import isda
from isda.compat.estimator import PublishedNames, classifier_weight

__all__ = ["PublishedLoss"]

Estimator = TypeVar("Estimator", bound=PublishedNames)


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
