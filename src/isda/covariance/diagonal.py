"""Diagonal covariances: variances per class (the paper's choice on ImageNet and Cityscapes), and the identity matrix
(the paper's ablation).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isda._utils.devices import on_host
from isda.covariance.base import CovarianceModel, statistics_dtype
from isda.covariance.online import OnlineCovariance
from isda.functional.diagonal import diagonal_gram, diagonal_margins, diagonal_variances, scaled_diagonal_margins
from isda.functional.grouping import Groups, frozen
from isda.functional.moments import add_squares
from isda.functional.quadratic import centred, margin_from_forms


class DiagonalCovariance(OnlineCovariance):
    """Sigma_c = diag(variances of the features of class c); C x A numbers.

    See OnlineCovariance for the arguments.

    Example:
        >>> model = DiagonalCovariance(num_classes=3, feature_dim=2)
        >>> model.update(torch.tensor([[0.0, 0.0], [2.0, 4.0]]), torch.tensor([1, 1]))
        >>> model.covariance(1)
        tensor([[1., 0.],
                [0., 4.]])
    """

    scatter: Tensor
    not_negative = (*OnlineCovariance.not_negative, "scatter")

    def __init__(self, num_classes: int, feature_dim: int, **settings: Any) -> None:
        super().__init__(num_classes, feature_dim, **settings)
        self.register_buffer("scatter", torch.zeros_like(self.offset))

    def variance(self, matrices: Tensor) -> Tensor:
        """(K, A) variances of the chosen classes."""
        return frozen(self.scatter.index_select(0, matrices) * self.scale_of(matrices).unsqueeze(1))

    def covariance(self, index: int) -> Tensor:
        """(A, A) covariance of class ``index``."""
        return torch.diag(self.variance(torch.tensor([index], device=self.scatter.device))[0])

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) table w_j' Sigma_k w_j."""
        return diagonal_variances(weight, self.variance(matrices))

    def margins(self, weight: Tensor, matrices: Tensor, pivots: Tensor) -> Tensor:
        """(K, C) table of margin variances: two matrix products."""
        return diagonal_margins(weight, self.variance(matrices), pivots)

    def row_margins(self, weight: Tensor, groups: Groups) -> Tensor:
        """(N, C) margin variances of the rows of a batch."""
        if on_host(weight):
            return super().row_margins(weight, groups)
        table = scaled_diagonal_margins(weight, self.scatter, self.scale, None if groups.complete else groups.labels)
        return table.index_select(0, groups.labels) if groups.complete else table

    def gram(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, C) tables W Sigma_k W'."""
        return diagonal_gram(weight, self.variance(matrices))

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows v to Sigma v."""
        variance = self.variance(groups.classes)[groups.slot]
        return lambda rows: rows * variance

    def transform_stacks(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """(n, m, A) rows Sigma_k v for stacks of m rows v."""
        return rows * self.variance(matrices).unsqueeze(1)

    def directions(self, targets: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) draws from N(0, Sigma_y)."""
        deviation = self.variance(targets).sqrt().unsqueeze(1)
        shape = (len(targets), n, self.feature_dim)
        return deviation * torch.randn(shape, generator=generator, dtype=self.dtype, device=deviation.device)

    def absorb(self, rows: Tensor, groups: Groups) -> None:
        """Add the outer products of the rows to the scatter."""
        add_squares(self.scatter, rows, groups)


class IdentityCovariance(CovarianceModel):
    """Sigma_c = I, whatever the features; updates only count them.

    Example:
        >>> model = IdentityCovariance(num_classes=2, feature_dim=2)
        >>> model.margin_variance(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), [0])
        tensor([[0., 2.]])
    """

    unit: Tensor

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, feature_dim, device=device)
        unit = torch.ones((), dtype=statistics_dtype(dtype), device=device)
        self.register_buffer("unit", unit, persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the covariance."""
        return self.unit.dtype

    @property
    def num_matrices(self) -> int:
        """One matrix serves all classes."""
        return 1

    def covariance(self, index: int) -> Tensor:
        """(A, A) identity."""
        return torch.eye(self.feature_dim, dtype=self.dtype, device=self.unit.device)

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) squared lengths of the weights, the same in every row."""
        return weight.square().sum(-1).expand(len(matrices), -1)

    def margins(self, weight: Tensor, matrices: Tensor, pivots: Tensor) -> Tensor:
        """(K, C) squared distances between the weights."""
        weight = centred(weight)
        return margin_from_forms(self.variances(weight, matrices), weight[pivots] @ weight.t(), pivots)

    def gram(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, C) tables W W'."""
        return (weight @ weight.t()).expand(len(matrices), -1, -1)

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows to themselves."""
        return lambda rows: rows

    def transform_stacks(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """The stacks themselves."""
        return rows

    def directions(self, targets: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) standard normal draws."""
        shape = (len(targets), n, self.feature_dim)
        return torch.randn(shape, generator=generator, dtype=self.dtype, device=self.unit.device)
