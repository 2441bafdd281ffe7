"""Low-rank covariances: a frequent-directions sketch per class plus the exact diagonal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from isda._utils.checks import check_integer
from isda.covariance.base import CovarianceModel
from isda.covariance.memory import AUTO_RANK
from isda.covariance.online import OnlineCovariance
from isda.functional.diagonal import diagonal_gram, diagonal_margins, diagonal_variances
from isda.functional.grouping import WORKSPACE_BYTES, Groups, chunks, frozen
from isda.functional.moments import add_squares
from isda.functional.quadratic import ProjectedWeights, known_projection, self_adjoint
from isda.functional.sketch import append_rows


class LowRankCovariance(OnlineCovariance):
    """Sigma_c ~ diag(d_c) + B_c' B_c with at most 2r rows in B_c; C x 2r x A numbers.

    B_c is a frequent-directions sketch of the centred features. The variances are tracked exactly beside it, and
    d_c is what the sketch leaves out of them, so the diagonal and the trace of Sigma_c are exact; what is approximate
    are the correlations, with the error bound of the sketch in any order of the stream.

    Args:
        num_classes: C.
        feature_dim: A.
        rank: r, half the rows of a sketch; its error is at most the trace of the covariance / (r + 1).
        **settings: see OnlineCovariance.
    """

    scatter: Tensor
    sketch: Tensor
    fill: Tensor
    not_negative = (*OnlineCovariance.not_negative, "scatter", "fill")

    def __init__(self, num_classes: int, feature_dim: int, *, rank: int = AUTO_RANK, **settings: Any) -> None:
        super().__init__(num_classes, feature_dim, **settings)
        self.rank = check_integer("rank", rank, 1)
        rows = torch.zeros(
            self.num_classes, 2 * self.rank, self.feature_dim, dtype=self.dtype, device=self.offset.device
        )
        self.register_buffer("scatter", torch.zeros_like(self.offset))
        self.register_buffer("sketch", rows)
        self.register_buffer("fill", torch.zeros_like(self.count))

    def factors(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        """(K, A) diagonals d and (K, 2r, A) factors B of the chosen classes."""
        scale = self.scale_of(matrices).unsqueeze(1)
        rows = self.sketch[matrices] * scale.sqrt().unsqueeze(2)
        diagonal = (self.scatter[matrices] * scale - rows.square().sum(1)).clamp_min(0)
        return frozen(diagonal), frozen(rows)

    def covariance(self, index: int) -> Tensor:
        """(A, A) covariance of class ``index``."""
        diagonal, rows = self.factors(torch.tensor([index], device=self.sketch.device))
        return torch.diag(diagonal[0]) + rows[0].t() @ rows[0]

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) table w_j' Sigma_k w_j: the diagonal part, and the weights projected on the sketches."""
        tables = []
        for part in self._parts(matrices, len(weight)):
            residual, projected = self._project(weight, matrices[part])
            tables.append(diagonal_variances(weight, residual) + projected.square().sum(1))
        return torch.cat(tables)

    def margins(self, weight: Tensor, matrices: Tensor, pivots: Tensor) -> Tensor:
        """(K, C) table of margin variances: the diagonal part, and squared distances on the sketches."""
        tables = []
        for part in self._parts(matrices, len(weight)):
            residual, projected = self._project(weight, matrices[part])
            own = pivots[part].view(-1, 1, 1).expand(-1, projected.shape[1], 1)
            distance = (projected - projected.gather(2, own)).square().sum(1)
            tables.append(diagonal_margins(weight, residual, pivots[part]) + distance)
        return torch.cat(tables)

    def gram(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, C) tables W Sigma_k W'."""
        tables = []
        for part in self._parts(matrices, len(weight)):
            residual, projected = self._project(weight, matrices[part])
            tables.append(diagonal_gram(weight, residual) + projected.mT @ projected)
        return torch.cat(tables)

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows v to Sigma v."""
        index = groups.labels

        def apply(rows: Tensor) -> Tensor:
            parts = []
            for part in chunks(len(rows), self.sketch[0].numel() * rows.element_size()):
                diagonal, factor = self.factors(index[part])
                coefficients = factor @ rows[part].unsqueeze(2)
                parts.append(diagonal * rows[part] + (factor.mT @ coefficients).squeeze(2))
            return torch.cat(parts)

        return lambda rows: self_adjoint(apply, rows, self.scatter, self.sketch)

    def projected(self, weight: Tensor, matrices: Tensor) -> ProjectedWeights | None:
        """W Sigma_k of the matrices (K,), if it fits the workspace."""
        if len(matrices) * weight.numel() * weight.element_size() > WORKSPACE_BYTES:
            return None
        constant, (diagonal, rows) = weight.detach(), self.factors(matrices)
        return known_projection(weight, torch.baddbmm(constant * diagonal.unsqueeze(1), constant @ rows.mT, rows))

    def transform_stacks(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """(n, m, A) rows Sigma_k v for stacks of m rows v: each sketch is read once."""
        stacks = []
        for part in chunks(len(rows), self.sketch[0].numel() * rows.element_size()):
            diagonal, factor = self.factors(matrices[part])
            stacks.append(rows[part] * diagonal.unsqueeze(1) + rows[part] @ factor.mT @ factor)
        return stacks[0] if len(stacks) == 1 else torch.cat(stacks)

    def directions(self, targets: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) draws from N(0, Sigma_y): independent noise on the diagonal plus noise along the sketch."""
        diagonal, rows = self.factors(targets)

        def noise(size: int) -> Tensor:
            return torch.randn(len(targets), n, size, generator=generator, dtype=self.dtype, device=rows.device)

        return noise(self.feature_dim) * diagonal.sqrt().unsqueeze(1) + noise(rows.shape[1]) @ rows

    def _project(self, weight: Tensor, matrices: Tensor) -> tuple[Tensor, Tensor]:
        """(K, A) residual diagonals and (K, 2r, C) inner products of sketch rows and weights: one GEMM."""
        residual, rows = self.factors(matrices)
        return residual, (rows.flatten(0, 1) @ weight.t()).view(*rows.shape[:2], -1)

    def _parts(self, matrices: Tensor, num_columns: int) -> list[slice]:
        widest = max(self.feature_dim, num_columns)
        return list(chunks(len(matrices), 2 * self.rank * widest * self.dtype.itemsize))

    def absorb(self, rows: Tensor, groups: Groups) -> None:
        """Add the outer products of the rows to the scatter."""
        add_squares(self.scatter, rows, groups)
        if torch.compiler.is_compiling():
            torch.ops.isda.append_rows(self.sketch, self.fill, rows, groups.labels)
        else:
            append_rows(self.sketch, self.fill, rows, groups.labels)

    def _scale(self, factors: Tensor) -> None:
        self.scatter *= factors.unsqueeze(1)
        self.sketch *= factors.sqrt().view(-1, 1, 1)

    def _merge_scatter(self, other: CovarianceModel, between: Tensor) -> None:
        other = cast(LowRankCovariance, other)
        self.scatter += other.scatter + between.square()
        rows = torch.cat([other.sketch.to(self.dtype), between.unsqueeze(1)], dim=1)
        index = torch.arange(self.num_classes, device=rows.device).unsqueeze(1).expand(rows.shape[:2]).flatten()
        append_rows(self.sketch, self.fill, rows.flatten(0, 1), index)

    def _check_same_kind(self, other: CovarianceModel) -> None:
        super()._check_same_kind(other)
        rank = cast(LowRankCovariance, other).rank
        if rank != self.rank:
            raise ValueError(f"other must have rank {self.rank}, got {rank}")
