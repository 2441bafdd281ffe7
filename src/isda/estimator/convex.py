"""The convex fit of a linear classifier to fixed rows: covariances, selection of lambda_0 and C, and the optimum.

With fewer rows than features the problem is solved in the span of the rows, which is exact: a component of w_j that
is orthogonal to all rows changes no logit and no margin variance under covariances of these rows, and under the
identity it can only raise the variance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isda.estimator.covariances import KEEPS_AXES, ClassRows, row_covariances
from isda.estimator.data import EncodedData, Scaler, Standardize
from isda.estimator.objective import ConvexObjective
from isda.estimator.selection import Selection, SelectionFold, held_out_logits, select
from isda.estimator.solver import minimise


def row_space(inputs: Tensor) -> Tensor | None:
    """(N, A) orthonormal directions whose span holds all rows (N, A); None if N >= A.

    Example:
        >>> basis = row_space(torch.tensor([[3.0, 4.0, 0.0]]))
        >>> basis.abs(), row_space(torch.eye(2))
        (tensor([[0.6000, 0.8000, 0.0000]]), None)
    """
    if inputs.shape[0] >= inputs.shape[1]:
        return None
    return torch.linalg.qr(inputs.t()).Q.t().contiguous()


# Problem sizes, in multiplications of a product of all rows with all weights.
_LARGE = 10**8
"""From here on float32 rows stay float32."""
_POLISHED = 10**7
"""Below, Newton steps to the accuracy of float64 are cheap."""
_TOL_OF_FOLDS, _LARGE_FOLDS = 1e-4, 10**6
"""The tolerance of folds, and the size from which on they are solved in float32, which is enough for that."""
_EXACT_FOLDS = 10**4
"""Below, folds are solved to the accuracy of float64 as well, so that the choice does not depend on rounding."""


class ConvexFit(NamedTuple):
    """The optimum, for the rows as they were given."""

    weight: NDArray[Any]  # (K, A), K = 1 for two classes
    intercept: NDArray[Any]  # (K,)
    strength: float
    C: float
    scale: float
    """The factor on weight and intercept, already applied."""
    n_iter: int
    gradient_norm: float


@dataclass(frozen=True, kw_only=True)
class ConvexProblem:
    """Settings of the convex fit, see ISDAClassifier."""

    strength: float | None
    """lambda_0, or None to choose it."""
    C: float | None
    """Inverse penalty, or None to choose it."""
    scale: float | None
    """Factor on the logits of the optimum, or None to choose it with the others."""
    covariance: str
    bound: str
    tol: float
    max_iter: int
    report: Callable[[str], None] | None = None

    def choose(
        self,
        data: EncodedData,
        scalers: Mapping[Standardize, Scaler],
        folds: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        *,
        offset: Tensor | None = None,
        n_jobs: int | None = None,
    ) -> Selection:
        """Choose the scaling and those of lambda_0, C and the scale that are None by held-out rows.

        Args:
            data: the rows, not scaled.
            scalers: of all rows, for the scalings to choose from; a fold scales anew by its training rows.
            folds: training and held-out rows of each fold.
            offset: as in ``fit``; with it, classes have equal weights in held-out rows.
            n_jobs: processes that solve folds.
        """
        balanced = offset is not None
        return select(
            {
                standardize: partial(self._folds, data, scaler, standardize, folds, balanced=balanced)
                for standardize, scaler in scalers.items()
            },
            strength=self.strength,
            C=self.C,
            scale=self.scale,
            report=self.report,
            **self._solver_of_folds(data, offset, n_jobs),
        )

    def held_out_logits(
        self,
        data: EncodedData,
        standardize: Standardize,
        scaler: Scaler,
        folds: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        *,
        offset: Tensor | None = None,
        n_jobs: int | None = None,
    ) -> list[NDArray[Any]]:
        """(M, C) logits of the held-out rows of each fold with the given lambda_0, C and scale; see ``choose``."""
        strength, inverse, scale = (1.0 if value is None else value for value in (self.strength, self.C, self.scale))
        scaled = self._folds(data, scaler, standardize, folds, balanced=False)
        solver = self._solver_of_folds(data, offset, n_jobs)
        return [scale * logits.numpy() for logits in held_out_logits(scaled, strength=strength, C=inverse, **solver)]

    def _folds(
        self,
        data: EncodedData,
        scaler: Scaler,
        standardize: Standardize,
        folds: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        *,
        balanced: bool,
    ) -> list[SelectionFold]:
        everything, reduce = _WeightedRows.of(data.scaled(scaler)), self.covariance not in KEEPS_AXES
        if self._size(data) >= _LARGE_FOLDS:
            everything = everything.single()
        return [_fold(self.covariance, everything, *fold, standardize, reduce, balanced) for fold in folds]

    def _solver_of_folds(self, data: EncodedData, offset: Tensor | None, n_jobs: int | None) -> dict[str, Any]:
        return {
            "bound": self.bound,
            "tol": max(self.tol, _TOL_OF_FOLDS),
            "max_iter": self.max_iter,
            "polish": self._size(data) < _EXACT_FOLDS,
            "offset": offset,
            "n_jobs": n_jobs,
        }

    def fit(
        self,
        data: EncodedData,
        *,
        offset: Tensor | None = None,
        start: NDArray[Any] | None = None,
        reduce: bool = True,
    ) -> ConvexFit:
        """Fit labelled rows; lambda_0, C and the scale are 1 if they are None.

        Args:
            data: the rows, scaled; a sample weight of 2 is the row twice, class weights affect the losses only.
            offset: (C, C) of the margins of each class, or None.
            start: (K, A + 1) weights and intercepts to start from.
            reduce: whether to solve in the span of the rows if there are fewer of them than features.
        """
        everything = _WeightedRows.of(data)
        rows, num_classes = everything.inputs, everything.num_classes
        reduce = reduce and self.covariance not in KEEPS_AXES
        # Nothing is chosen if every class has a single row, and so no covariance to augment with.
        strength, inverse, scale = (1.0 if value is None else value for value in (self.strength, self.C, self.scale))
        basis = row_space(rows) if reduce else None
        whole = everything.onto(basis).rows()
        objective = ConvexObjective(
            whole,
            row_covariances(self.covariance, whole),
            strength=strength,
            penalty=1 / (inverse * everything.total),
            bound=self.bound,
            offset=offset,
        )
        first = None if start is None else torch.from_numpy(start).to(rows.dtype)
        if first is not None and basis is not None:
            first = torch.cat([first[:, :-1] @ basis.t(), first[:, -1:]], 1)
        solution = minimise(
            objective,
            first,
            tol=self.tol,
            max_iter=self.max_iter,
            polish=rows.dtype == torch.float64 and self._size(data, reduce=reduce) < _POLISHED,
        )
        weight = solution.parameters[:, :-1] if basis is None else solution.parameters[:, :-1] @ basis
        intercept = solution.parameters[:, -1]
        if num_classes > 2:
            intercept = intercept - intercept.mean()
        settings, search = (strength, inverse, scale), (solution.n_iter, solution.gradient_norm)
        return ConvexFit(scale * weight.numpy(), scale * intercept.numpy(), *settings, *search)

    def _size(self, data: EncodedData, *, reduce: bool = True) -> int:
        """Multiplications of a product of all rows with all weights."""
        shape = data.inputs.shape
        return (
            len(data.inputs)
            * (min(shape) if reduce and self.covariance not in KEEPS_AXES else shape[1])
            * data.num_classes
        )


def _fold(
    covariance: str,
    everything: _WeightedRows,
    train: NDArray[Any],
    held_out: NDArray[Any],
    standardize: Standardize,
    reduce: bool,
    balanced: bool,
) -> SelectionFold:
    fitted, test = everything.pick(train), everything.pick(held_out)
    if standardize:
        # By the training rows: a feature that hardly varies among them may be large in a held-out row.
        scaler = Scaler.of(fitted.inputs.numpy(), fitted.counts.numpy(), standardize)
        fitted, test = fitted.scaled(scaler), test.scaled(scaler)
    basis = row_space(fitted.inputs) if reduce else None
    fitted, test = fitted.onto(basis), test.onto(basis)
    rows, weights = fitted.rows(), test.loss_weights
    if balanced:
        # A class of weight 0 stays at 0.
        sizes = weights.new_zeros(everything.num_classes)
        sizes.index_add_(0, everything.labels, everything.loss_weights).clamp_min_(torch.finfo(weights.dtype).tiny)
        weights = weights * everything.total / (everything.num_classes * sizes[test.labels])
    covariances = row_covariances(covariance, rows)
    return SelectionFold(rows, covariances, test.inputs, test.labels, weights, fitted.total)


class _WeightedRows(NamedTuple):
    """Rows in their original order, before they become ClassRows."""

    inputs: Tensor
    labels: Tensor
    counts: Tensor
    loss_weights: Tensor
    num_classes: int

    @classmethod
    def of(cls, data: EncodedData) -> _WeightedRows:
        """In float64, or float32 if the rows are and there are many."""
        inputs, labels, counts, class_weights, num_classes = data
        wide = inputs.dtype == np.float32 and inputs.size * num_classes >= _LARGE
        rows = torch.from_numpy(inputs if wide else inputs.astype(np.float64))
        return cls(
            rows,
            torch.from_numpy(labels),
            torch.from_numpy(counts).to(rows.dtype),
            torch.from_numpy(counts * class_weights[labels]).to(rows.dtype),
            num_classes,
        )

    @property
    def total(self) -> float:
        return float(self.loss_weights.sum())

    def single(self) -> _WeightedRows:
        """In float32."""
        return self._replace(
            inputs=self.inputs.float(), counts=self.counts.float(), loss_weights=self.loss_weights.float()
        )

    def scaled(self, scaler: Scaler) -> _WeightedRows:
        """With scaled features."""
        return self._replace(inputs=torch.from_numpy(scaler.transform(self.inputs.numpy())))

    def onto(self, basis: Tensor | None) -> _WeightedRows:
        """In the coordinates of a row space."""
        return self if basis is None else self._replace(inputs=self.inputs @ basis.t())

    def pick(self, index: NDArray[Any]) -> _WeightedRows:
        chosen = torch.from_numpy(index)
        return self._replace(
            inputs=self.inputs[chosen],
            labels=self.labels[chosen],
            counts=self.counts[chosen],
            loss_weights=self.loss_weights[chosen],
        )

    def rows(self) -> ClassRows:
        return ClassRows.of(self.inputs, self.labels, self.num_classes, weights=self.loss_weights, counts=self.counts)
