"""A covariance model of one's own: correlations between neighbouring features only.

The features of a convolution over time or frequency are correlated with their neighbours; (w + 2) x A numbers per class
keep what a full covariance needs A x A for.

    criterion = ISDALoss(10, 64, covariance=BandedCovariance(10, 64, width=3))
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from isda.covariance import Covariance, Groups


class BandedCovariance(Covariance):
    """Covariances at distance l = 0..width, times 1 - l / (width + 1): that keeps Sigma positive definite."""

    def __init__(self, num_classes: int, feature_dim: int, *, width: int = 2, **settings: Any) -> None:
        super().__init__(num_classes, feature_dim, **settings)
        self.width = width
        self.register_buffer("scatter", self.mean.new_zeros(num_classes, width + 1, feature_dim))

    def absorb(self, centred: Tensor, groups: Groups, between: Tensor) -> None:
        """Add z_a z_{a+l} of the centred rows z, and of a row for each class, to the sums of their classes."""
        labels = groups.classes.index_select(0, groups.slot)
        for lag in range(self.width + 1):
            self.scatter[:, lag].index_add_(0, labels, centred * F.pad(centred[:, lag:], (0, lag)))
            self.scatter[:, lag].index_add_(0, groups.classes, between * F.pad(between[:, lag:], (0, lag)))

    def product(self, rows: Tensor, groups: Groups) -> Tensor:
        """Sigma v: each entry from itself and from its neighbours on both sides."""
        own = groups.classes.index_select(0, groups.slot)
        bands = self.scatter[own] * self.scale(own).view(-1, 1, 1)
        result = bands[:, 0] * rows
        for lag in range(1, self.width + 1):
            taper = 1 - lag / (self.width + 1)
            band = taper * bands[:, lag, : self.feature_dim - lag]
            result = result + F.pad(band * rows[:, lag:], (0, lag)) + F.pad(band * rows[:, :-lag], (lag, 0))
        return result
