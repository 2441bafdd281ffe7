"""The published CIFAR loss: ``loss, output = ISDALoss(feature_num, class_num)(model, fc, x, target_x, ratio)``."""

from torch import Tensor, nn

from isda.compat import Published, PublishedLoss
from isda.covariance import FullCovariance


class EstimatorCV(Published, FullCovariance):
    """A covariance matrix per class."""


class ISDALoss(PublishedLoss):
    """``model`` maps x to features (N, A), ``fc`` maps these to logits."""

    Estimator = EstimatorCV

    def forward(
        self, model: nn.Module, fc: nn.Module, x: Tensor, target_x: Tensor, ratio: float
    ) -> tuple[Tensor, Tensor]:
        """The mean loss and the logits of a batch."""
        features = model(x)
        output = fc(features)
        return self.loss_of(features, output, target_x, fc, ratio), output
