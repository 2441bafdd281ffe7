"""The identity matrix for every class: the paper's ablation, and a sanity check."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isda.covariance.base import CovarianceModel, statistics_dtype
from isda.functional.grouping import Groups
from isda.functional.quadratic import centred, margin_from_forms

__all__ = ["IdentityCovariance"]


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

    def prefers_gram(self, rows: int, matrices: int) -> bool:
        """A single table is always the cheapest way."""
        return True

    def directions(self, targets: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) standard normal draws."""
        shape = (len(targets), n, self.feature_dim)
        return torch.randn(shape, generator=generator, dtype=self.dtype, device=self.unit.device)
