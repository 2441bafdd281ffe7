"""The published Cityscapes loss: ``logits = ISDALoss(A, C, device)(features, final_conv, y, target_x, ratio)``."""

from typing import Any

from torch import Tensor, nn

from isda.attach import find_classifiers
from isda.compat import PublishedLoss, imagenet
from isda.loss import rows_of


class EstimatorCV(imagenet.EstimatorCV):
    """The variances of each class; pixels labelled 255 do not count."""

    def update_CV(self, features: Tensor, labels: Tensor) -> None:
        """Learn from features (N, A) of the classes ``labels`` (N,)."""
        self.update(features, labels, labels != 255)


class ISDALoss(PublishedLoss):
    """Augmented logits (N, C, H, W), to be upsampled and compared with the labels; in eval mode y as it is."""

    Estimator = EstimatorCV
    ignored = 255

    def forward(self, features: Tensor, final_conv: nn.Module, y: Tensor, target_x: Tensor, ratio: float) -> Tensor:
        """Learn from features (N, A, H, W), and augment the logits ``y`` of the 1x1 convolution ``final_conv``."""
        if not self.training:
            return y
        labels, counted = self.criterion.labels_of(y, target_x, features)
        self.estimator.update(rows_of(features), labels, counted)
        weight: Any = find_classifiers(final_conv)[0].weight
        return self.criterion.augmented_logits(y, target_x, weight=weight, strength=ratio)
