"""One full covariance matrix for all classes: the paper's "single covariance matrix" ablation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from isda.covariance.base import CovarianceModel
from isda.covariance.full import FullCovariance
from isda.functional.grouping import Groups
from isda.functional.quadratic import centred, margin_from_forms

__all__ = ["SharedCovariance"]


class SharedCovariance(FullCovariance):
    """The covariance of all features of all classes together, around their common mean; A x A numbers.

    See OnlineCovariance for the arguments.

    Example:
        >>> import torch
        >>> model = SharedCovariance(num_classes=2, feature_dim=1)
        >>> model.update(torch.tensor([[0.0], [4.0]]), torch.tensor([0, 1]))
        >>> model.covariance(0), model.covariance(1)
        (tensor([[4.]]), tensor([[4.]]))
    """

    shared = True

    @property
    def num_matrices(self) -> int:
        """One matrix serves all classes."""
        return 1

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) table w_j' Sigma w_j, the same in every row."""
        return ((weight @ self._matrix()) * weight).sum(-1).expand(len(matrices), -1)

    def margins(self, weight: Tensor, matrices: Tensor, pivots: Tensor) -> Tensor:
        """(K, C) table of margin variances from one product W Sigma, whatever the number of rows."""
        weight = centred(weight)
        projected = weight @ self._matrix()
        variances = (projected * weight).sum(-1).expand(len(matrices), -1)
        return margin_from_forms(variances, projected[pivots] @ weight.t(), pivots)

    def row_margins(self, weight: Tensor, groups: Groups) -> Tensor:
        """(N, C) margin variances of the rows of a batch: one row per class, handed out."""
        return CovarianceModel.row_margins(self, weight, groups)

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows v to Sigma v."""
        matrix = self._matrix()
        return lambda rows: rows @ matrix

    def prefers_gram(self, rows: int, matrices: int) -> bool:
        """A single table is always the cheapest way."""
        return True

    def _matrix(self) -> Tensor:
        return self.scatter[0] * self.scale
