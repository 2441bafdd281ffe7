"""The published Cityscapes loss: augmented logits at the resolution of the features, diagonal covariances."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isda.compat.base import DiagonalEstimator, PublishedLoss, classifier_weight

__all__ = ["EstimatorCV", "ISDALoss"]

IGNORED = 255


class EstimatorCV(DiagonalEstimator):
    """Variances per class; pixels labelled 255 do not count."""

    def update_CV(self, features: Tensor, labels: Tensor) -> None:
        """Absorb features (N, A) of the classes ``labels`` (N,)."""
        self.update(features, labels, mask=labels != IGNORED)


class ISDALoss(PublishedLoss[EstimatorCV]):
    """``augmented_logits = criterion(features, final_conv, y, target_x, ratio)``.

    In eval mode it returns y as it is.

    Args:
        feature_num: A.
        class_num: C.
        device: where the statistics live.
    """

    def __init__(self, feature_num: int, class_num: int, device: torch.device | str | None = None) -> None:
        super().__init__(EstimatorCV(feature_num, class_num, device), ignore_index=IGNORED, device=device)

    def forward(self, features: Tensor, final_conv: nn.Module, y: Tensor, target_x: Tensor, ratio: float) -> Tensor:
        """(N, C, H, W) logits to upsample and compare with the labels; the statistics learn from the features.

        Args:
            features: (N, A, H, W).
            final_conv: the classifier, a 1x1 convolution.
            y: (N, C, H, W) its output.
            target_x: (N, H', W') labels; pixels labelled 255 are neither counted nor augmented.
            ratio: the current strength, lambda_0 times the share of training that is done.
        """
        if not self.training:
            return y
        with self.estimator.reporting_failure():
            weight = classifier_weight(final_conv)
            inputs = self.criterion._check_inputs(y, target_x, features, weight)
        self.criterion._update_statistics(inputs, self.criterion._groups(inputs))
        return self.criterion.augmented_logits(y, target_x, weight=weight, strength=ratio)
