"""One full covariance matrix for all classes, of the features around the mean of their own class."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from isda.covariance.base import CovarianceModel
from isda.covariance.shared import SharedCovariance
from isda.functional.grouping import Groups

__all__ = ["WithinCovariance"]


class WithinCovariance(SharedCovariance):
    """Sigma = sum_c M2_c / sum_c n_c, pooled within classes; A x A numbers, and C means.

    For few samples per class. Where "shared" also holds the differences between classes, which augmentation must not
    bridge, this holds what varies inside of them. With ``decay`` every update weakens all that was known before.

    See OnlineCovariance for the arguments.

    Example:
        >>> import torch
        >>> model = WithinCovariance(num_classes=2, feature_dim=1)
        >>> model.update(torch.tensor([[0.0], [2.0], [7.0]]), torch.tensor([0, 0, 1]))
        >>> model.covariance(0), model.covariance(1)
        (tensor([[0.6667]]), tensor([[0.6667]]))
    """

    @property
    def num_means(self) -> int:
        """Every class has a mean of its own."""
        return self.num_classes

    def absorb(self, rows: Tensor, groups: Groups) -> None:
        """Add the outer products of the rows to the one scatter."""
        self.scatter[0].addmm_(rows.t(), rows)

    def _forget(self, present: Tensor) -> None:
        super()._forget(present.any().expand_as(present))

    def _scale(self, factors: Tensor) -> None:
        self.scatter *= factors[0]

    def _merge_scatter(self, other: CovarianceModel, between: Tensor) -> None:
        self.scatter += cast(WithinCovariance, other).scatter
        self.scatter[0].addmm_(between.t(), between)
