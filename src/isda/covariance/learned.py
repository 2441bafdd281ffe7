"""Covariances trained by gradient instead of estimated from features."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from isda._utils.checks import check_number
from isda.covariance.base import CovarianceModel, statistics_dtype
from isda.functional.grouping import Groups, chunks, join_chunks
from isda.functional.quadratic import product_by_group
from isda.functional.sampling import feature_uncertainty_loss, gaussian_entropy


class LearnedCovariance(CovarianceModel):
    """Sigma_c = D_c D_c' with a trained factor D_c of shape (A, r); updates only count the features.

    Hand ``criterion.parameters()`` to the optimiser. The bounds alone are smallest for D = 0; the criterion therefore
    adds ``uncertainty_weight * uncertainty_loss(uncertainty_margin)`` to its loss while the strength is above 0. Every
    operation is differentiable twice in the factor. Merging adds the counts: a trained factor cannot be merged.

    Args:
        num_classes: C.
        feature_dim: A.
        rank: r; None for A, the full matrix.
        scale: standard deviation of each direction at the start.
        uncertainty_weight: weight of the feature-uncertainty loss of DistributionNet; 0 leaves it out.
        uncertainty_margin: the mean entropy to keep, in nats; None for that at the start.
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
        uncertainty_weight: float = 1.0,
        uncertainty_margin: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, feature_dim, device=device)
        rank = self.feature_dim if rank is None else rank
        if int(rank) != rank or not 1 <= rank <= self.feature_dim:
            raise ValueError(f"rank must be an integer in 1..{self.feature_dim}, got {rank!r}")
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be a finite number > 0, got {scale!r}")
        self.rank, self.scale = int(rank), float(scale)
        # The directions are orthogonal at the start: r/2 (1 + log 2 pi) + r log(scale).
        start = self.rank * (0.5 * (1 + math.log(2 * math.pi)) + math.log(scale))
        self.uncertainty_weight = check_number("uncertainty_weight", uncertainty_weight)
        self.uncertainty_margin = start if uncertainty_margin is None else float(uncertainty_margin)
        shape = (self.num_classes, self.feature_dim, self.rank)
        self.factor = nn.Parameter(torch.empty(shape, dtype=statistics_dtype(dtype), device=device))
        self.reset()

    @property
    def dtype(self) -> torch.dtype:
        """Floating point type of the factor."""
        return self.factor.dtype

    def covariance(self, index: int) -> Tensor:
        """(A, A) covariance of class ``index``, differentiable in the factor."""
        return self.factor[index] @ self.factor[index].t()

    def uncertainty_loss(self, margin: float) -> Tensor:
        """DistributionNet's feature-uncertainty loss over the classes: max(0, margin - mean entropy)."""
        return feature_uncertainty_loss(gaussian_entropy(self.factor), margin)

    def penalty(self) -> Tensor | None:
        """The weighted feature-uncertainty loss."""
        if not self.uncertainty_weight:
            return None
        return self.uncertainty_weight * self.uncertainty_loss(self.uncertainty_margin)

    @torch.no_grad()
    def reset(self) -> None:
        """Start again: orthogonal directions of the initial scale, no counts."""
        eye = torch.eye(self.feature_dim, self.rank, dtype=self.dtype, device=self.factor.device)
        self.factor.copy_((self.scale * eye).expand_as(self.factor))
        self.count.zero_()

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
        factors = self.factor[groups.classes]
        return lambda rows: product_by_group(product_by_group(rows, factors, groups), factors.mT, groups)

    def transform_stacks(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """(n, m, A) rows Sigma_k v for stacks of m rows v."""
        stacks = []
        for part in chunks(len(rows), self.factor[0].numel() * rows.element_size()):
            factor = self.factor.index_select(0, matrices[part])
            stacks.append(rows[part] @ factor @ factor.mT)
        return join_chunks(stacks)

    def directions(self, targets: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) draws D e with standard normal e."""
        shape = (len(targets), n, self.rank)
        noise = torch.randn(shape, generator=generator, dtype=self.dtype, device=self.factor.device)
        return noise @ self.factor[targets].mT
