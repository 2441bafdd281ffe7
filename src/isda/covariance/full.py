"""Full covariance matrices: one per class (the paper's default on CIFAR), one shared by all classes (the paper's
ablation), or one pooled within the classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from isda._utils import checks
from isda._utils.devices import on_host
from isda.covariance.base import CovarianceModel, statistics_dtype
from isda.covariance.memory import check_full_fits
from isda.covariance.online import OnlineCovariance
from isda.functional.grouping import LOOP_FROM_DIM, WORKSPACE_BYTES, Groups, chunks, frozen, join_chunks
from isda.functional.moments import Blocks, add_outer_products, add_outer_products_on_device
from isda.functional.quadratic import (
    ProjectedWeights,
    class_margins,
    common_margins,
    full_gram,
    full_quadratic,
    full_transform,
    product_by_group,
    projected_weights,
    self_adjoint,
)
from isda.functional.sampling import covariance_root


class FullCovariance(OnlineCovariance):
    """Sigma_c = M2_c / n_c with all correlations; C x A x A numbers.

    See OnlineCovariance for the arguments.

    Example:
        >>> model = FullCovariance(num_classes=3, feature_dim=2)
        >>> model.update(torch.tensor([[0.0, 0.0], [2.0, 4.0]]), torch.tensor([1, 1]))
        >>> model.covariance(1)
        tensor([[1., 2.],
                [2., 4.]])
    """

    scatter: Tensor
    shared = False
    """Whether one matrix serves all classes."""

    def __init__(self, num_classes: int, feature_dim: int, **settings: Any) -> None:
        device = torch.device(settings.get("device") or torch.get_default_device())
        dtype = statistics_dtype(settings.get("dtype"))
        check_full_fits(1 if self.shared else num_classes, feature_dim, dtype.itemsize, device)
        super().__init__(num_classes, feature_dim, **settings)
        shape = (self.num_matrices, self.feature_dim, self.feature_dim)
        self.register_buffer("scatter", torch.zeros(shape, dtype=dtype, device=device))

    def covariance(self, index: int) -> Tensor:
        """(A, A) covariance of class ``index``."""
        matrix = self.matrix_index(torch.tensor([index], device=self.scatter.device))
        return self.scatter[matrix[0]] * self.scale_of(matrix)

    def variances(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C) table w_j' Sigma_k w_j."""
        return full_quadratic(weight, self.scatter, matrices, scale=self.scale_of(matrices))

    def margins(self, weight: Tensor, matrices: Tensor, pivots: Tensor) -> Tensor:
        """(K, C) table of margin variances."""
        return full_quadratic(weight, self.scatter, matrices, pivots, self.scale_of(matrices))

    def row_margins(self, weight: Tensor, groups: Groups) -> Tensor:
        """(N, C) margin variances of the rows of a batch."""
        if not on_host(weight) and groups.complete:
            return class_margins(weight, self.scatter, self.scale).index_select(0, groups.slot)
        if on_host(weight) and 0.85 * self.num_classes < len(groups.classes) < self.num_classes:
            # Nearly every class occurs: one batched product over all matrices in place is faster than picking some.
            everything = torch.arange(self.num_classes)
            return self.margins(weight, everything, everything).index_select(0, groups.labels)
        return super().row_margins(weight, groups)

    def gram(self, weight: Tensor, matrices: Tensor) -> Tensor:
        """(K, C, C) tables W Sigma_k W'."""
        return full_gram(weight, self.scatter, matrices, self.scale_of(matrices))

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows v to Sigma v."""
        scale = self.scale_of(groups.classes)
        copied = len(groups.classes) * self.scatter[0].numel() * self.dtype.itemsize
        if self.feature_dim < LOOP_FROM_DIM and copied <= WORKSPACE_BYTES:
            matrices = self.scatter.index_select(0, groups.classes).mul_(scale.view(-1, 1, 1))
            return lambda rows: product_by_group(rows, matrices, groups)
        of_row = scale[groups.slot].unsqueeze(1)
        return lambda rows: self_adjoint(lambda v: full_transform(v, self.scatter, groups) * of_row, rows, self.scatter)

    def transform_stacks(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """(n, m, A) rows Sigma_k v for stacks of m rows v, with as many matrices at a time as fit the workspace."""
        stacks, scale = [], self.scale_of(matrices).view(-1, 1, 1)
        for part in chunks(len(rows), self.scatter[0].numel() * rows.element_size()):
            stacks.append(rows[part] @ self.scatter.index_select(0, matrices[part]) * scale[part])
        return join_chunks(stacks)

    def projected(self, weight: Tensor, matrices: Tensor) -> ProjectedWeights | None:
        """W Sigma_k of the matrices (K,), if it fits the workspace."""
        return projected_weights(weight, self.scatter, matrices, self.scale_of(matrices))

    def prefers_gram(self, rows: int, matrices: int) -> bool:
        """Whether tables per matrix are cheaper than products per row, and fit the workspace."""
        table_bytes = matrices * self.num_classes**2 * self.dtype.itemsize
        return table_bytes <= WORKSPACE_BYTES and super().prefers_gram(rows, matrices)

    def directions(self, targets: Tensor, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) draws L e from N(0, Sigma_y), with one Cholesky factor for each class in the batch."""
        groups = self.groups(targets)
        noise = torch.randn(
            len(targets), n, self.feature_dim, generator=generator, dtype=self.dtype, device=self.scatter.device
        )
        matrix_bytes = self.scatter[0].numel() * self.dtype.itemsize
        parts = chunks(len(groups.classes), 4 * matrix_bytes)
        roots = torch.cat([self._roots(groups.classes[part]) for part in parts])
        if groups.one_slot_per_row:
            return noise @ roots.mT
        return product_by_group(noise.flatten(0, 1), roots.mT, self.groups(targets.repeat_interleave(n))).view_as(noise)

    def _roots(self, matrices: Tensor) -> Tensor:
        """(K, A, A) lower triangular roots of the covariances."""
        return covariance_root(self.scatter.index_select(0, matrices) * self.scale_of(matrices).view(-1, 1, 1))

    def _learn_rows(self, features: Tensor, targets: Tensor, mask: Tensor | None, groups: Groups | None = None) -> None:
        blocks = None
        if on_host(targets) and not self.shared:
            blocks = Blocks(targets, self.num_classes, None if groups is None else groups.counts)
        if blocks is None or not blocks.is_worthwhile(self.feature_dim):
            super()._learn_rows(features, targets, mask, groups)
            return
        seen = self.count if self.effective is None else self.effective
        blocks.absorb(features, seen, self.origin, self.offset, self.scatter)
        self.count.add_(torch.from_numpy(blocks.sizes))
        if self.effective is not None:
            self.effective.add_(torch.from_numpy(blocks.sizes))

    def absorb(self, rows: Tensor, groups: Groups) -> None:
        """Add the outer products of the rows to the scatter."""
        if torch.compiler.is_compiling():
            torch.ops.isda.add_outer_products(self.scatter, rows, groups.labels)
        elif on_host(rows):
            add_outer_products(self.scatter, rows, groups)
        else:
            add_outer_products_on_device(self.scatter, rows, groups)

    def _check_state(self, state: Mapping[str, Any], prefix: str) -> None:
        super()._check_state(state, prefix)
        scatter = state.get(f"{prefix}scatter")
        if isinstance(scatter, Tensor) and scatter.ndim == 3:
            checks.check_entry(f"the diagonal of {prefix}scatter", scatter.diagonal(dim1=1, dim2=2), 0)

    def _scale(self, factors: Tensor) -> None:
        # In place and only where something changes: the matrices of classes that do not occur are not even read.
        if on_host(factors):
            for index in (factors != 1).nonzero().flatten().tolist():
                self.scatter[index] *= factors[index]
        else:
            self.scatter *= factors.view(-1, 1, 1)

    def _merge_scatter(self, other: CovarianceModel, between: Tensor) -> None:
        self.scatter += cast(FullCovariance, other).scatter
        for matrix, row in zip(self.scatter, between, strict=True):
            matrix.addr_(row, row)


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
        return common_margins(weight, self._matrix(), pivots)

    def row_margins(self, weight: Tensor, groups: Groups) -> Tensor:
        """(N, C) margin variances of the rows of a batch: one table row per class, gathered."""
        return CovarianceModel.row_margins(self, weight, groups)

    def transform(self, groups: Groups) -> Callable[[Tensor], Tensor]:
        """The map of (N, A) rows v to Sigma v."""
        matrix = self._matrix()
        return lambda rows: rows @ matrix

    def projected(self, weight: Tensor, matrices: Tensor) -> ProjectedWeights:
        """W Sigma, once for all."""
        products = weight @ self._matrix()
        variances = (products * weight).sum(-1).unsqueeze(0)
        return ProjectedWeights(products.detach().unsqueeze(0), torch.ones_like(self.scale), variances, None)

    def _matrix(self) -> Tensor:
        return frozen(self.scatter[0] * self.scale)


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
