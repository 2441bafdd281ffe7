"""The published CIFAR loss: features = model(x), output = fc(features), full covariances."""

from __future__ import annotations

from torch import Tensor, nn

import isda
from isda.compat.estimator import FullEstimator as EstimatorCV
from isda.compat.estimator import classifier_weight

__all__ = ["EstimatorCV", "ISDALoss"]


class ISDALoss(nn.Module):
    """``loss, output = criterion(model, fc, x, target_x, ratio)``.

    Unlike the published loss it keeps its statistics in the state_dict, and in eval mode it is plain cross-entropy that
    changes nothing.

    Args:
        feature_num: A.
        class_num: C.
    """

    def __init__(self, feature_num: int, class_num: int) -> None:
        super().__init__()
        self.criterion = isda.ISDALoss(class_num, feature_num, covariance=EstimatorCV(feature_num, class_num))

    @property
    def estimator(self) -> EstimatorCV:
        """The statistics."""
        assert isinstance(self.criterion.covariance, EstimatorCV)
        return self.criterion.covariance

    def forward(
        self, model: nn.Module, fc: nn.Module, x: Tensor, target_x: Tensor, ratio: float
    ) -> tuple[Tensor, Tensor]:
        """The mean loss and the logits of a batch.

        Args:
            model: maps x to features (N, A).
            fc: the classifier, a linear layer or a module around one; may be wrapped for data parallel training.
            x: inputs.
            target_x: (N,) labels.
            ratio: the current strength, lambda_0 times the share of training that is done.
        """
        features = model(x)
        output = fc(features)
        self.to(features.device)
        weight = classifier_weight(fc)
        return self.criterion(output, target_x, features=features, weight=weight, strength=ratio), output
