"""Covariances trained by gradient instead of estimated from features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from isda.covariance.base import CovarianceModel, statistics_dtype
from isda.functional.entropy import feature_uncertainty_loss, gaussian_entropy
from isda.functional.grouping import Groups, chunks


class LearnedCovariance(CovarianceModel):
    """Sigma_c = D_c D_c' with a trained factor D_c of shape (A, r); updates only count the features.

    Hand ``criterion.parameters()`` to the optimiser, and add ``uncertainty_loss`` to the training loss: the bounds
    alone are smallest for D = 0. Every operation is differentiable twice in the factor.

    Args:
        num_classes: C.
        feature_dim: A.
        rank: r; None for A, the full matrix.
        scale: standard deviation of each direction at the start.
        device: where the factor lives.
        dtype: its type, at least float32.
    """

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        *,
        rank: int | None = None,
        scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, feature_dim, device=device)
        rank = self.feature_dim if rank is None else rank
        if int(rank) != rank or not 1 <= rank <= self.feature_dim:
            raise ValueError(f"rank must be an integer in 1..{self.feature_dim}, got {rank!r}")
        self.rank, self.scale = int(rank), float(scale)
        shape = (self.num_classes, self.feature_dim, self.rank)
        self.factor = nn.Parameter(torch.empty(shape, dtype=statistics_dtype(dtype), device=device))
        self.reset()

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the factor."""
        return self.factor.dtype

    @property
    def mean(self) -> Tensor:
        """(C, A) zeros: no mean is kept."""
        return self.factor.new_zeros(()).expand(self.num_classes, self.feature_dim)

    def covariance(self, index: int) -> Tensor:
        """(A, A) covariance of class ``index``, differentiable in the factor."""
        return self.factor[index] @ self.factor[index].t()

    def uncertainty_loss(self, margin: float) -> Tensor:
        """DistributionNet's feature-uncertainty loss over the classes: max(0, margin - mean entropy)."""
        return feature_uncertainty_loss(gaussian_entropy(self.factor), margin)

    @torch.no_grad()
    def reset(self) -> None:
        """Start again: orthogonal directions of the initial scale, no counts."""
        eye = torch.eye(self.feature_dim, self.rank, dtype=self.dtype, device=self.factor.device)
        self.factor.copy_((self.scale * eye).expand_as(self.factor))
        self.count.zero_()

    def update(
        self, features: Tensor, targets: Tensor, *, mask: Tensor | None = None, groups: Groups | None = None
    ) -> None:
        """Count the features of each class."""
        self._count_rows(features, targets, mask)

    def merge(self, other: CovarianceModel) -> None:
        """Add the counts; a trained factor cannot be merged and stays as it is."""
        self._check_same_kind(other)
        self.count += other.count

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) table w_j' Sigma_k w_j through the (K, C, r) products W D."""
        return (weight @ self.factor[matrices]).square().sum(-1)

    def margins(self, weight: Tensor, matrices: Tensor, pivots: Tensor) -> Tensor:
        """(K, C) table of margin variances: squared distances between the rows of W D."""
        projected = weight @ self.factor[matrices]
        own = projected[torch.arange(len(pivots), device=pivots.device), pivots]
        return (projected - own.unsqueeze(1)).square().sum(-1)

    def gram(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, C) tables W Sigma_k W'."""
        projected = weight @ self.factor[matrices]
        return projected @ projected.mT

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows v to Sigma v."""
        factors = self.factor.unbind(0)

        def apply(rows: Tensor) -> Tensor:
            parts = rows[groups.order].split(groups.sizes)
            indices = groups.classes.tolist()
            products = [part @ factors[k] @ factors[k].t() for k, part in zip(indices, parts, strict=True)]
            return torch.cat(products)[groups.inverse_order]

        return apply

    def transform_stacks(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """(n, m, A) rows Sigma_k v for stacks of m rows v."""
        stacks = []
        for part in chunks(len(rows), self.factor[0].numel() * rows.element_size()):
            factor = self.factor.index_select(0, matrices[part])
            stacks.append(rows[part] @ factor @ factor.mT)
        return stacks[0] if len(stacks) == 1 else torch.cat(stacks)

    def directions(self, targets: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) draws D e with standard normal e."""
        shape = (len(targets), n, self.rank)
        noise = torch.randn(shape, generator=generator, dtype=self.dtype, device=self.factor.device)
        return noise @ self.factor[targets].mT
