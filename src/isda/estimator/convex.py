"""The convex fit of a linear classifier to fixed rows: covariances, selection of lambda_0 and C, and the optimum.

With fewer rows than features the problem is solved in the span of the rows, which is exact: a component of w_j that
is orthogonal to all rows changes no logit and no margin variance under covariances of these rows, and under the
identity it can only raise the variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isda.estimator.covariances import KEEPS_AXES, ClassRows, row_covariances
from isda.estimator.data import Scaler
from isda.estimator.objective import ConvexObjective
from isda.estimator.selection import SelectionFold, select
from isda.estimator.solver import minimise

# Fewer rows than features: the same problem in the space of the rows, exactly, with as many coordinates as rows.
#
# A part of w_j that is orthogonal to all rows changes no logit and no margin variance under covariances of these rows
# (or under the identity, which it can only raise); it only costs penalty. The optimum therefore lies in the span of
# the rows.


def row_space(inputs: Tensor) -> Tensor | None:
    """(N, A) orthonormal directions whose span holds all rows (N, A); None where N >= A, and nothing is gained.

    Example:
        >>> basis = row_space(torch.tensor([[3.0, 4.0, 0.0]]))
        >>> basis.abs(), row_space(torch.eye(2))
        (tensor([[0.6000, 0.8000, 0.0000]]), None)
    """
    if inputs.shape[0] >= inputs.shape[1]:
        return None
    return torch.linalg.qr(inputs.t()).Q.t().contiguous()


_LARGE = 10**8
"""Multiplications of a product of all rows with all weights from which float32 rows stay float32."""
_POLISHED = 10**7
"""Up to here Newton steps to the accuracy of float64 cost nothing that anybody would notice."""
_TOL_OF_FOLDS, _LARGE_FOLDS = 1e-4, 10**6
"""How far folds are solved, and from how many multiplications on in float32, which is enough for that."""
_EXACT_FOLDS = 10**4
"""Up to here they are solved to the accuracy of float64 as well, so that rounding chooses nothing."""


class ConvexFit(NamedTuple):
    """The optimum, for the rows as they were given."""

    weight: NDArray[Any]
    """(K, A), K = 1 for two classes."""
    intercept: NDArray[Any]
    """(K,)."""
    strength: float
    C: float
    scale: float
    """That weight and intercept have been multiplied by."""
    n_iter: int
    gradient_norm: float
    cv_results: dict[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class ConvexProblem:
    """How to fit; see ISDAClassifier for what the settings mean."""

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
    standardize: bool = False
    """Whether folds scale the features of their rows anew."""
    report: Callable[[str], None] | None = None

    def fit(
        self,
        inputs: NDArray[Any],
        labels: NDArray[Any],
        num_classes: int,
        *,
        counts: NDArray[Any],
        class_weights: NDArray[Any],
        folds: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        offset: Tensor | None = None,
        start: NDArray[Any] | None = None,
        reduce: bool = True,
    ) -> ConvexFit:
        """Fit rows (N, A) with labels 0..C-1.

        Args:
            inputs: (N, A).
            labels: (N,).
            num_classes: C.
            counts: (N,) sample weights, all above 0: a weight of 2 is the row twice.
            class_weights: (C,) factors of the losses of each class, which the statistics do not see.
            folds: training and held-out rows of each fold, for the choice of lambda_0 and C.
            offset: (C, C) of the margins of each class, or None; folds are then judged with equal weights of classes.
            start: (K, A + 1) weights and intercepts to start from.
            reduce: whether to solve in the space of the rows where there are fewer of them than features.
        """
        wide = inputs.dtype == np.float32 and inputs.size * num_classes >= _LARGE
        rows = torch.from_numpy(inputs if wide else inputs.astype(np.float64))
        reduce = reduce and self.covariance not in KEEPS_AXES
        everything = _Weighted(
            rows,
            torch.from_numpy(labels),
            torch.from_numpy(counts).to(rows.dtype),
            torch.from_numpy(counts * class_weights[labels]).to(rows.dtype),
            num_classes,
        )
        strength, inverse, scale, results = self.strength, self.C, self.scale, None
        size = len(rows) * (min(rows.shape) if reduce else rows.shape[1]) * num_classes
        if (strength is None or inverse is None) and folds:
            quick = everything.single() if size >= _LARGE_FOLDS else everything
            chosen = select(
                [self._fold(quick, *fold, reduce=reduce, balanced=offset is not None) for fold in folds],
                strength=strength,
                C=inverse,
                scale=scale,
                bound=self.bound,
                offset=offset,
                tol=max(self.tol, _TOL_OF_FOLDS),
                polish=size < _EXACT_FOLDS,
                max_iter=self.max_iter,
                report=self.report,
            )
            strength, inverse, scale, results = chosen
        # Nothing to choose by: every class has one row, and no spread that could be augmented.
        strength, inverse, scale = (1.0 if one is None else one for one in (strength, inverse, scale))
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
        found = minimise(
            objective,
            None if start is None else _onto(torch.from_numpy(start).to(rows.dtype), basis),
            tol=self.tol,
            max_iter=self.max_iter,
            polish=rows.dtype == torch.float64 and size < _POLISHED,
        )
        weight = found.parameters[:, :-1] if basis is None else found.parameters[:, :-1] @ basis
        intercept = found.parameters[:, -1]
        if num_classes > 2:
            intercept = intercept - intercept.mean()
        return ConvexFit(
            scale * weight.numpy(),
            scale * intercept.numpy(),
            strength,
            inverse,
            scale,
            found.n_iter,
            found.gradient_norm,
            results,
        )

    def _fold(
        self, everything: _Weighted, train: NDArray[Any], held_out: NDArray[Any], *, reduce: bool, balanced: bool
    ) -> SelectionFold:
        mine, theirs = everything.pick(train), everything.pick(held_out)
        if self.standardize:
            # As the training rows say: a feature that hardly varies among them may be large in a row they do not know.
            scaler = Scaler.of(mine.inputs.numpy(), mine.counts.numpy(), on=True)
            mine, theirs = mine.scaled(scaler), theirs.scaled(scaler)
        basis = row_space(mine.inputs) if reduce else None
        mine, theirs = mine.onto(basis), theirs.onto(basis)
        rows, weights = mine.rows(), theirs.loss_weights
        if balanced:
            # A class of weight 0 stays at 0.
            sizes = everything.class_totals().clamp_min(torch.finfo(weights.dtype).tiny)
            weights = weights * everything.total / (everything.num_classes * sizes[theirs.labels])
        return SelectionFold(
            rows, row_covariances(self.covariance, rows), theirs.inputs, theirs.labels, weights, mine.total
        )


class _Weighted(NamedTuple):
    inputs: Tensor
    labels: Tensor
    counts: Tensor
    loss_weights: Tensor
    num_classes: int

    @property
    def total(self) -> float:
        return float(self.loss_weights.sum())

    def class_totals(self) -> Tensor:
        """(C,) sums of the weights."""
        return self.loss_weights.new_zeros(self.num_classes).index_add_(0, self.labels, self.loss_weights)

    def single(self) -> _Weighted:
        """In float32."""
        return self._replace(
            inputs=self.inputs.float(), counts=self.counts.float(), loss_weights=self.loss_weights.float()
        )

    def scaled(self, scaler: Scaler) -> _Weighted:
        """With other features."""
        return self._replace(inputs=torch.from_numpy(scaler.scaled(self.inputs.numpy())))

    def onto(self, basis: Tensor | None) -> _Weighted:
        """In the coordinates of a row space."""
        return self if basis is None else self._replace(inputs=self.inputs @ basis.t())

    def pick(self, index: NDArray[Any]) -> _Weighted:
        chosen = torch.from_numpy(index)
        return self._replace(
            inputs=self.inputs[chosen],
            labels=self.labels[chosen],
            counts=self.counts[chosen],
            loss_weights=self.loss_weights[chosen],
        )

    def rows(self) -> ClassRows:
        return ClassRows.of(self.inputs, self.labels, self.num_classes, weights=self.loss_weights, counts=self.counts)


def _onto(start: Tensor, basis: Tensor | None) -> Tensor:
    return start if basis is None else torch.cat([start[:, :-1] @ basis.t(), start[:, -1:]], 1)
