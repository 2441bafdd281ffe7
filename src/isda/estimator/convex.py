"""The convex fit of a linear classifier to fixed rows: covariances, selection of lambda_0 and C, and the optimum.

Rows are centred and turned into the principal axes of the covariance within classes, where it is diagonal; both is
exact: the intercepts, which have no penalty, take up the centre, and neither the penalty nor covariances of these rows
depend on the axes ("diagonal" and "shrunk" do, and are fitted in the axes of the features). With fewer rows than
features only directions in their span remain: a component of w_j that is orthogonal to all centred rows changes no
margin variance under covariances of these rows, and under the identity it can only raise it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isda.estimator.covariances import KEEPS_AXES, ClassRows, row_covariances, within_covariance
from isda.estimator.data import EncodedData, Scaler, Standardize
from isda.estimator.objective import ConvexObjective
from isda.estimator.selection import Folds, Selection, held_out_logits, select
from isda.estimator.solver import minimise
from isda.estimator.trials import FoldSolver, SelectionFold


class Axes(NamedTuple):
    """Coordinates of rows: x as directions (x - centre)."""

    centre: Tensor  # (A,)
    directions: Tensor | None = None
    """(R, A) orthonormal; None for the features themselves."""
    variances: Tensor | None = None
    """(R,) within classes, along the directions."""

    def transform(self, inputs: Tensor) -> Tensor:
        """(N, R) coordinates of rows (N, A)."""
        centred = inputs - self.centre
        return centred if self.directions is None else centred @ self.directions.t()

    def to_features(self, parameters: Tensor) -> Tensor:
        """(K, A + 1) weights and intercepts of features, from those (K, R + 1) of coordinates."""
        weight = parameters[:, :-1] if self.directions is None else parameters[:, :-1] @ self.directions
        return torch.cat([weight, parameters[:, -1:] - weight @ self.centre.unsqueeze(1)], 1)

    def from_features(self, parameters: Tensor) -> Tensor:
        """(K, R + 1), the inverse of ``to_features`` for weights in the span of the directions."""
        weight = parameters[:, :-1]
        intercept = parameters[:, -1:] + weight @ self.centre.unsqueeze(1)
        return torch.cat([weight if self.directions is None else weight @ self.directions.t(), intercept], 1)


_RANK = 1e-12
"""Directions with a smaller part of the largest variance of rows are rounding."""


def principal_axes(rows: ClassRows) -> Axes:
    """The axes in which the covariance within classes is diagonal, in the span of the centred rows.

    Example:
        >>> rows = ClassRows.of(torch.tensor([[3.0, 4.0, 7.0], [-3.0, -4.0, 7.0]]), torch.tensor([0, 0]), 2)
        >>> principal_axes(rows).directions.abs(), principal_axes(rows).variances.round()
        (tensor([[0.6000, 0.8000, 0.0000]]), tensor([25.]))
    """
    centre = rows.loss_weights @ rows.inputs
    centred, span = rows.inputs - centre, None
    if centred.shape[0] <= centred.shape[1]:
        # From products of rows, in float64: their eigenvalues are squares.
        wide = centred.double()
        values, vectors = torch.linalg.eigh(wide @ wide.t())
        kept = values > _RANK * values[-1]
        kept[-1] = True
        vectors, roots = vectors[:, kept], values[kept].clamp_min(torch.finfo(values.dtype).tiny).sqrt()
        span = ((vectors / roots).t() @ wide).to(centred.dtype)
        centred = (vectors * roots).to(centred.dtype)
    variances, axes = torch.linalg.eigh(within_covariance(rows._replace(inputs=centred)))
    directions = axes.t() if span is None else axes.t() @ span
    return Axes(centre, directions.contiguous(), variances.clamp_min(0))


# Problem sizes, in multiplications of a product of all rows with all weights.
_LARGE = 10**8
"""From here on float32 rows stay float32."""
_POLISHED = 10**7
"""Below, Newton steps to the accuracy of float64 are cheap."""
_LARGE_FOLDS = 10**6
"""From here on folds are solved in float32, which is enough for them but for the search of tilts."""
_ACCURACY, _ACCURACY_OF_FOLDS = 1e-6, 1e-6
"""Of the decrement, relative to the size of the weights."""
_CONSTANT = 1e-3
"""A feature whose standard deviation is smaller by this factor in a fold than in all rows is constant there."""
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
            solver=self._solver_of_folds(data, offset, n_jobs),
            report=self.report,
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
        found = held_out_logits(scaled, strength=strength, C=inverse, solver=solver)
        return [scale * logits.numpy() for logits in found]

    def _folds(
        self,
        data: EncodedData,
        scaler: Scaler,
        standardize: Standardize,
        folds: Sequence[tuple[NDArray[Any], NDArray[Any]]],
        *,
        balanced: bool,
    ) -> Folds:
        everything, turn = _WeightedRows.of(data.scaled(scaler)), self.covariance not in KEEPS_AXES
        if self._size(data) >= _LARGE_FOLDS and self.bound != "tilted":
            everything = everything.single()
        return [
            cache(partial(_fold, self.covariance, everything, scaler, *fold, standardize, turn, balanced))
            for fold in folds
        ]

    def _solver_of_folds(self, data: EncodedData, offset: Tensor | None, n_jobs: int | None) -> FoldSolver:
        return FoldSolver(
            bound=self.bound,
            accuracy=_ACCURACY_OF_FOLDS,
            max_iter=self.max_iter,
            polish=self._size(data) < _EXACT_FOLDS,
            offset=offset,
            n_jobs=n_jobs,
        )

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
            start: (K, A + 1) weights and intercepts of the scaled rows to start from.
            reduce: whether to solve in the span of the rows if there are fewer of them than features.
        """
        everything = _WeightedRows.of(data)
        # Nothing is chosen if every class has a single row, and so no covariance to augment with.
        strength, inverse, scale = (1.0 if value is None else value for value in (self.strength, self.C, self.scale))
        rows, axes = everything.in_axes(turn=reduce and self.covariance not in KEEPS_AXES)
        objective = ConvexObjective(
            rows,
            row_covariances(self.covariance, rows),
            strength=strength,
            penalty=1 / (inverse * everything.total),
            bound=self.bound,
            offset=offset,
        )
        solution = minimise(
            objective,
            None if start is None else axes.from_features(torch.from_numpy(start).to(rows.inputs.dtype)),
            tol=self.tol,
            accuracy=min(self.tol, _ACCURACY),
            max_iter=self.max_iter,
            polish=rows.inputs.dtype == torch.float64 and self._size(data, reduce=reduce) < _POLISHED,
            near=start is not None,
        )
        parameters = axes.to_features(solution.parameters)
        weight, intercept = parameters[:, :-1], parameters[:, -1]
        if everything.num_classes > 2:
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
    scaler_of_all: Scaler,
    train: NDArray[Any],
    held_out: NDArray[Any],
    standardize: Standardize,
    turn: bool,
    balanced: bool,
) -> SelectionFold:
    fitted, test, scalers = everything.pick(train), everything.pick(held_out), [scaler_of_all]
    if standardize:
        # By the training rows: a feature that hardly varies among them may be large in a held-out row.
        scaler = Scaler.of(fitted.inputs.numpy(), fitted.counts.numpy(), standardize)
        if standardize == "columns":
            constant = _deviations(fitted) < _CONSTANT * _deviations(everything)
            # Divided by infinity, a feature takes no part in held-out rows either.
            scaler = scaler._replace(spread=np.where(constant, np.inf, scaler.spread).astype(scaler.spread.dtype))
        fitted, test = fitted.scaled(scaler), test.scaled(scaler)
        scalers.append(scaler)
    rows, axes = fitted.in_axes(turn=turn)
    weights = test.loss_weights
    if balanced:
        # A class of weight 0 stays at 0.
        sizes = weights.new_zeros(everything.num_classes)
        sizes.index_add_(0, everything.labels, everything.loss_weights).clamp_min_(torch.finfo(weights.dtype).tiny)
        weights = weights * everything.total / (everything.num_classes * sizes[test.labels])

    def to_features(parameters: Tensor) -> Tensor:
        weight, intercept = _split(axes.to_features(parameters).double())
        for scaler in reversed(scalers):
            weight, intercept = scaler.to_original(weight, intercept)
        return torch.from_numpy(np.concatenate([weight, intercept[:, None]], 1))

    def from_features(parameters: Tensor) -> Tensor:
        for scaler in scalers:
            parameters = torch.from_numpy(scaler.from_original(*_split(parameters)))
            parameters = parameters.nan_to_num_(0.0, 0.0, 0.0)  # features that take no part
        return axes.from_features(parameters.to(rows.inputs.dtype))

    covariances = row_covariances(covariance, rows)
    inputs, total = axes.transform(test.inputs), fitted.total
    return SelectionFold(covariances, inputs, test.labels, weights, total, to_features, from_features)


def _split(parameters: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights and intercepts."""
    return parameters[:, :-1].numpy(), parameters[:, -1].numpy()


def _deviations(rows: _WeightedRows) -> NDArray[Any]:
    """(A,) standard deviations of features."""
    inputs, share = rows.inputs.numpy(), (rows.counts / rows.counts.sum()).numpy()
    return np.sqrt(share @ (inputs - share @ inputs) ** 2)


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

    def pick(self, index: NDArray[Any]) -> _WeightedRows:
        chosen = torch.from_numpy(index)
        return self._replace(
            inputs=self.inputs[chosen],
            labels=self.labels[chosen],
            counts=self.counts[chosen],
            loss_weights=self.loss_weights[chosen],
        )

    def in_axes(self, *, turn: bool) -> tuple[ClassRows, Axes]:
        """Sorted by class, centred and, with ``turn``, in principal axes."""
        rows = ClassRows.of(self.inputs, self.labels, self.num_classes, weights=self.loss_weights, counts=self.counts)
        axes = principal_axes(rows) if turn else Axes(rows.loss_weights @ rows.inputs)
        return rows._replace(inputs=axes.transform(rows.inputs), variances=axes.variances), axes
