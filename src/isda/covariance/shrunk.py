"""Covariance of each class, shrunk towards the covariance pooled within classes (Ledoit-Wolf)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from isda._utils.devices import in_graph
from isda.covariance.base import CovarianceModel
from isda.covariance.full import FullCovariance
from isda.functional.diagonal import diagonal_gram, diagonal_margins, diagonal_variances
from isda.functional.grouping import Groups, frozen
from isda.functional.moments import shrinkage_to_diagonal, shrinkage_to_target
from isda.functional.quadratic import ProjectedWeights, common_margins, known_projection
from isda.functional.sampling import covariance_root


class ShrinkageMixture(NamedTuple):
    """Sigma_c = own_c S_c + pooled_c P + apart_c diag(P)."""

    own: Tensor
    """(C,)."""
    pooled: Tensor
    """(C,)."""
    apart: Tensor
    """(C,)."""
    matrix: Tensor
    """(A, A) P, the covariance within classes."""
    variance: Tensor
    """(A,) its diagonal."""


class ShrunkCovariance(FullCovariance):
    """Sigma_c = (1 - r_c) S_c + r_c T, T = (1 - q) P + q diag(P), with P pooled within classes; C x A x A numbers.

    S_c is the class's own covariance. The intensities r_c and q follow from the statistics by the formula of Ledoit and
    Wolf (isda.functional.moments): near 1 for few samples, towards 0 for many. A class not seen yet has T.

    See OnlineCovariance for the arguments.

    Example:
        >>> model = ShrunkCovariance(num_classes=2, feature_dim=2)
        >>> features = torch.tensor([[0.0, 0.0], [2.0, 4.0], [1.0, 0.0], [3.0, 1.0]])
        >>> model.update(features, torch.tensor([0, 0, 0, 1]))
        >>> model.intensities()
        tensor([1., 1.])
    """

    _known_mixture: tuple[Tensor, int, int, ShrinkageMixture] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ShrunkCovariance:
        """A copy, which has no mixture yet."""
        twin = cast(ShrunkCovariance, super().__deepcopy__(memo))
        twin._known_mixture = None
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Without the mixture: tensors that are read from a file count their versions from the start."""
        return {name: value for name, value in self.__dict__.items() if name != "_known_mixture"}

    def classes_below(self, samples: int) -> int:
        """None: a class with few features has the pooled covariance."""
        return 0

    def intensities(self) -> Tensor:
        """(C,) r_c, how much of each class's own covariance is given up."""
        return 1 - self.mixture().own

    def mixture(self) -> ShrinkageMixture:
        """What the covariances are made of; computed once per update."""
        if in_graph() or self._recorded:
            return ShrinkageMixture(*map(frozen, self._mix()))
        key = (self.scatter._version, self.count._version)
        known = self._known_mixture
        if known is not None and known[0] is self.scatter and known[1:3] == key:
            return known[3]
        mixture = self._mix()
        if not torch.is_inference_mode_enabled():  # what is made there, no graph could use
            self._known_mixture = (self.scatter, *key, mixture)
        return mixture

    @torch.no_grad()
    def _mix(self) -> ShrinkageMixture:
        seen, flat = self._seen().to(self.dtype), self.scatter.flatten(1)
        total = seen.sum()
        matrix = self.scatter.sum(0) / total.clamp_min(1)
        variance = matrix.diagonal()
        freedom = (total - (seen > 0).sum()).clamp_min(0)
        toward = shrinkage_to_diagonal(freedom, variance.sum(), matrix.square().sum(), variance.square().sum())
        target = torch.diag(variance * toward).add_(matrix * (1 - toward))
        scale = self.scale
        trace = self.scatter.diagonal(dim1=1, dim2=2).sum(1) * scale
        square = (torch.linalg.vector_norm(flat, dim=1) * scale).square()
        inner = torch.mv(flat, target.flatten()) * scale
        distance = (square - 2 * inner + target.square().sum()).clamp_min(0)
        given_up = shrinkage_to_target(seen - 1, trace, square, distance)
        return ShrinkageMixture(1 - given_up, given_up * (1 - toward), given_up * toward, matrix, variance)

    def covariance(self, index: int) -> Tensor:
        """(A, A) covariance of class ``index``."""
        return self._shrunk(torch.tensor([index], device=self.scatter.device))[0]

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) table w_j' Sigma_k w_j."""
        own, pooled, apart, matrix, variance = self._columns(matrices)
        common = ((weight @ matrix) * weight).sum(-1)
        return (
            own * super().variances(weight, matrices) + pooled * common + apart * diagonal_variances(weight, variance)
        )

    def margins(self, weight: Tensor, matrices: Tensor, pivots: Tensor) -> Tensor:
        """(K, C) table of margin variances."""
        own, pooled, apart, matrix, variance = self._columns(matrices)
        common = common_margins(weight, matrix, pivots)
        single = diagonal_margins(weight, variance.expand(len(matrices), -1), pivots)
        return own * super().margins(weight, matrices, pivots) + pooled * common + apart * single

    def row_margins(self, weight: Tensor, groups: Groups) -> Tensor:
        """(N, C) margin variances of the rows of a batch: one table row per class, gathered."""
        return CovarianceModel.row_margins(self, weight, groups)

    def gram(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, C) tables W Sigma_k W'."""
        own, pooled, apart, matrix, variance = self._columns(matrices)
        common, single = weight @ matrix @ weight.t(), diagonal_gram(weight, variance)
        forms = own.unsqueeze(2) * super().gram(weight, matrices)
        return forms + pooled.unsqueeze(2) * common + apart.unsqueeze(2) * single

    def projected(self, weight: Tensor, matrices: Tensor) -> ProjectedWeights | None:
        """W Sigma_k of the matrices (K,), if it fits the workspace."""
        constant = weight.detach()
        alone = super().projected(constant, matrices)
        if alone is None:
            return None
        own, pooled, apart, matrix, variance = self._columns(matrices)
        products = alone.products * (own * alone.scale.unsqueeze(1)).unsqueeze(2)
        products += pooled.unsqueeze(2) * (constant @ matrix) + apart.unsqueeze(2) * (constant * variance)
        return known_projection(weight, products)

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows v to Sigma v."""
        own, pooled, apart, matrix, variance = self._columns(groups.labels)
        alone = super().transform(groups)
        return lambda rows: own * alone(rows) + pooled * (rows @ matrix) + apart * variance * rows

    def transform_stacks(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """(n, m, A) rows Sigma_k v for stacks of m rows v."""
        own, pooled, apart, matrix, variance = self._columns(matrices)
        stacks = own.unsqueeze(2) * super().transform_stacks(rows, matrices)
        return stacks + pooled.unsqueeze(2) * (rows @ matrix) + (apart * variance).unsqueeze(1) * rows

    def _roots(self, matrices: Tensor) -> Tensor:
        return covariance_root(self._shrunk(matrices))

    def _shrunk(self, matrices: Tensor) -> Tensor:
        """(K, A, A) the matrices themselves."""
        own, pooled, apart, matrix, variance = self._columns(matrices)
        alone = self.scatter.index_select(0, matrices) * (own * self.scale_of(matrices).unsqueeze(1)).unsqueeze(2)
        return alone + pooled.unsqueeze(2) * matrix + apart.unsqueeze(2) * torch.diag(variance[0])

    def _columns(self, matrices: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(K, 1) shares of the three parts for the chosen classes; the matrix P (A, A) and its diagonal (1, A)."""
        mixture = self.mixture()
        shares = (mixture.own, mixture.pooled, mixture.apart)
        own, pooled, apart = (share.index_select(0, matrices).unsqueeze(1) for share in shares)
        return own, pooled, apart, mixture.matrix, mixture.variance.unsqueeze(0)
