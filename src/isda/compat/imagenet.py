"""The published ImageNet loss: ``loss, output = ISDALoss(feature_num, class_num)(model, x, target_x, ratio)``."""

from torch import Tensor, nn

from isda.compat import Published, PublishedLoss
from isda.covariance import DiagonalCovariance


class EstimatorCV(Published, DiagonalCovariance):
    """The variances of each class."""


class ISDALoss(PublishedLoss):
    """``model(x, isda=True)`` gives logits and features; its classifier is ``fc``."""

    Estimator = EstimatorCV

    def forward(self, model: nn.Module, x: Tensor, target_x: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
        """The mean loss and the logits of a batch."""
        output, features = model(x, isda=True)
        return self.loss_of(features, output, target_x, model, ratio), output
