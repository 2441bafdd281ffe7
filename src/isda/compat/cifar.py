"""The published CIFAR loss: features = model(x), output = fc(features), full covariances."""

from __future__ import annotations

from torch import Tensor, nn

from isda.compat.base import FullEstimator as EstimatorCV
from isda.compat.base import PublishedLoss

__all__ = ["EstimatorCV", "ISDALoss"]


class ISDALoss(PublishedLoss[EstimatorCV]):
    """``loss, output = criterion(model, fc, x, target_x, ratio)``.

    Args:
        feature_num: A.
        class_num: C.
    """

    def __init__(self, feature_num: int, class_num: int) -> None:
        super().__init__(EstimatorCV(feature_num, class_num))

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
        return self.loss_of(features, output, target_x, fc, ratio), output
