"""The class names of the paper's published code, so that its training scripts run by changing an import.

    from ISDA import EstimatorCV, ISDALoss            ->  from isda.compat.cifar import EstimatorCV, ISDALoss
    from ISDA_imagenet import EstimatorCV, ISDALoss   ->  from isda.compat.imagenet import EstimatorCV, ISDALoss
    the Cityscapes code                               ->  from isda.compat.segmentation import EstimatorCV, ISDALoss

In eval mode they are plain cross-entropy. New code is better off with isda.ISDALoss, which needs no model in its call.
"""

from typing import Any

import torch
from torch import Tensor, nn

import isda
from isda.attach import find_classifiers
from isda.covariance import Covariance

__all__ = ["Published", "PublishedLoss"]


class Published(Covariance):
    """The names and arguments of a published estimator; ``feature_num`` is A, ``class_num`` is C."""

    scatter: Tensor

    def __init__(self, feature_num: int, class_num: int, **settings: Any) -> None:
        super().__init__(class_num, feature_num, **settings)

    @property
    def Ave(self) -> Tensor:
        """(C, A) mean feature per class."""
        return self.mean

    @property
    def Amount(self) -> Tensor:
        """(C,) number of features seen per class."""
        return self.count

    @property
    def CoVariance(self) -> Tensor:
        """(C, A, A) covariances, or (C, A) variances."""
        return self.scatter / self.count.clamp(min=1).view(-1, *[1] * (self.scatter.ndim - 1))

    def update_CV(self, features: Tensor, labels: Tensor) -> None:
        """Learn from features (N, A) of the classes ``labels`` (N,)."""
        self.update(features, labels)


class PublishedLoss(nn.Module):
    """A loss that is called with the model, or parts of it, and with the current strength ``ratio``."""

    Estimator: type[Published]
    ignored = -100

    def __init__(self, feature_num: int, class_num: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        estimator = self.Estimator(feature_num, class_num, device=device)
        self.criterion = isda.ISDALoss(class_num, feature_num, covariance=estimator, device=device)
        self.criterion.ignore_index = self.ignored

    @property
    def estimator(self) -> Any:
        """The statistics."""
        return self.criterion.covariance

    def loss_of(self, features: Tensor, output: Tensor, target: Tensor, model: nn.Module, ratio: float) -> Tensor:
        """The mean loss of a batch, on the device of its features."""
        self.to(features.device)
        weight: Any = find_classifiers(model)[0].weight
        loss: Tensor = self.criterion(output, target, features=features, weight=weight, strength=ratio)
        return loss
