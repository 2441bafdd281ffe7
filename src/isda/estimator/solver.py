"""Minimiser of the convex objective: preconditioned L-BFGS, then Newton's method.

Near a point the Hessian is about h T + k lambda S + penalty I for each class, with the second moments T of the rows,
the average covariance S, and the factors h and k that an evaluation measures. Its inverse is where the two-loop
recursion of L-BFGS starts, so that correlated features, strong augmentation and penalties of any size need a dozen
steps. It is renewed when the factors change.

The decrement g'Hg, with the inverse Hessian H of the recursion, is about twice the distance of f to its minimum in
nats. The search ends when it is a small part of W'PW, P being the Hessian above: that is a relative error of the
weights, whatever C, the number of rows and the size of the features are.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from typing import NamedTuple

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from isda.estimator.covariances import class_means
from isda.estimator.objective import ConvexObjective, Evaluation

_MEMORY, _SHORTER, _LONGER, _LEAST_FALL = 10, 15, 2.0, 0.3
_OTHER_CURVATURE = 3.0
_ROUGH = 1e-3
_NEWTON_STEPS, _POLISHING_STEPS = 10, 20
_POLISHED = 1e-13
_FIRST_TILTS, _TILT_SHARE = 1e-4, 1e-3
"""How far tilts may be from the best ones: in nats before the first step, then relative to the decrement."""


class Solution(NamedTuple):
    """The result of a minimisation."""

    parameters: Tensor  # (K, A + 1)
    value: float
    gradient_norm: float
    """Largest absolute entry of the gradient."""
    n_iter: int
    converged: bool


class Preconditioner:
    """P = h T + k lambda S + penalty I for the weights of each class, h for its intercept.

    If the rows are in principal axes, T = diag(v) + M'M with class means M, S is diag(v), T or I, and the inverse
    of P takes products with M only. Otherwise P is a dense matrix and factorised.
    """

    def __init__(self, objective: ConvexObjective) -> None:
        self._objective, self._factors = objective, (0.0, 0.0)
        rows, covariances = objective.rows, objective.covariances
        # In float64: where S is singular, both parts of the inverse are as large as 1 / penalty.
        self._means = None if rows.variances is None else class_means(rows).double()
        self._variances = None if rows.variances is None else rows.variances.double()
        self._identity = covariances.pooled is not None and covariances.matrix is None
        self._shared = covariances.matrix is not None and covariances.matrix.ndim == 2
        self._diagonal = self._low = self._weight = self._matrix = self._inverse = torch.empty(0)

    def update(self, here: Evaluation) -> None:
        """Take over the factors of an evaluation, if they have changed enough."""
        factors = max(here.curvature, 1e-8), max(here.spread, 1e-8)
        limit = 3.0 if self._means is None else 1.3
        if all(old / limit <= new <= old * limit for old, new in zip(self._factors, factors, strict=True)):
            return
        self._factors, strength, penalty = factors, self._objective.strength, self._objective.penalty
        curvature, spread = factors[0], factors[1] * strength
        if self._means is None or self._variances is None:
            self._factorise(curvature, spread)
            return
        diagonal = (curvature + (0 if self._identity else spread)) * self._variances
        diagonal += penalty + (spread if self._identity else 0)
        self._diagonal = diagonal.clamp_min_(1e-14 * _largest(diagonal) + 1e-300)
        self._low = (curvature + (spread if self._shared else 0)) ** 0.5 * self._means
        scaled = self._low / diagonal
        small = scaled @ self._low.t()
        small.diagonal().add_(1)
        factor, failed = torch.linalg.cholesky_ex(small)
        _check_factor(bool(failed) or not bool(factor.isfinite().all()))
        self._weight = torch.linalg.solve_triangular(factor, scaled, upper=False)

    def _factorise(self, curvature: float, spread: float) -> None:
        covariances = self._objective.covariances
        if covariances.moment is None:
            raise ValueError("covariances must have the second moments of their rows, got None")
        matrix = curvature * covariances.moment.double()
        if covariances.average is not None and spread:
            matrix = matrix.add_(covariances.average.double(), alpha=spread)
        self._matrix = matrix.clone()
        self._matrix.diagonal().add_(self._objective.penalty)
        # A floor far below every curvature that matters, for objectives without a penalty.
        floor = 1e-10 * float(matrix.diagonal().mean()) + 1e-30
        matrix.diagonal().add_(max(self._objective.penalty, floor))
        factor, failed = torch.linalg.cholesky_ex(matrix)
        while failed and floor <= float(matrix.diagonal().sum()):
            # Failed by rounding. The minimum does not depend on the preconditioner.
            floor *= 100
            matrix.diagonal().add_(floor)
            factor, failed = torch.linalg.cholesky_ex(matrix)
        _check_factor(bool(failed))
        self._inverse = torch.cholesky_inverse(factor).to(self._objective.rows.inputs.dtype)

    def solve(self, gradient: Tensor) -> Tensor:
        """(K, A + 1) P^-1 g."""
        solution = torch.empty_like(gradient)
        solution[:, -1] = gradient[:, -1] / self._factors[0]
        if self._means is None:
            solution[:, :-1] = gradient[:, :-1] @ self._inverse
        else:
            wide = gradient[:, :-1].double()
            solution[:, :-1] = torch.addmm(wide / self._diagonal, wide @ self._weight.t(), self._weight, alpha=-1)
        return solution

    def square(self, parameters: Tensor) -> float:
        """W'PW of the weights."""
        weight = parameters[:, :-1]
        if self._means is None:
            return float((weight @ self._matrix.to(weight.dtype) * weight).sum())
        diagonal, low = self._diagonal.to(weight.dtype), self._low.to(weight.dtype)
        return float((weight.square() @ diagonal).sum() + (weight @ low.t()).square().sum())


def _largest(values: Tensor) -> float:
    """The largest absolute value; 0 of none, where all features of a fold are constant."""
    return float(values.abs().max()) if values.numel() else 0.0


def _check_factor(failed: bool) -> None:
    if failed:
        raise ValueError("rows and weights must have finite second moments, got NaN or infinity")


def minimise(
    objective: ConvexObjective,
    start: Tensor | None = None,
    *,
    tol: float,
    accuracy: float,
    max_iter: int,
    warn: bool = True,
    polish: bool = False,
    near: bool = False,
) -> Solution:
    """Minimise until the decrement is at most ``accuracy`` W'PW and no entry of the gradient is larger than ``tol``.

    Warns (ConvergenceWarning) if that fails. ``start`` is (K, A + 1) parameters, by default zeros. ``polish`` continues
    by a few Newton steps to the accuracy of the dtype. The search with the tilted bound begins at about the optimum of
    the published one, where tilts are found easily, unless ``start`` is ``near`` its own.
    """
    if objective.tilted and objective.strength and not near:
        rough = objective.published()
        start = minimise(rough, start, tol=torch.inf, accuracy=_ROUGH, max_iter=max_iter, warn=False).parameters
    parameters = objective.rows.inputs.new_zeros(objective.shape) if start is None else start
    preconditioner, memory = Preconditioner(objective), _Memory()
    objective.tilt_accuracy, length = _FIRST_TILTS, 1.0
    logits = objective.logits(parameters)
    here, steps, enough = objective.evaluate(parameters, logits), 0, False
    if start is not None and here.value > math.log(objective.rows.num_classes):
        # Worse than equal probabilities, so far from the optimum that the curvature may be lost.
        zeros = torch.zeros_like(parameters)
        from_zeros = objective.evaluate(zeros)
        if from_zeros.value < here.value:
            parameters, logits, here = zeros, objective.logits(zeros), from_zeros
    while True:
        preconditioner.update(here)
        direction = memory.times(here.gradient, preconditioner)
        decrement = float((here.gradient * direction).sum())
        if not decrement > 0 and len(memory.pairs):  # rounding
            memory.pairs.clear()
            continue
        enough = decrement <= accuracy * preconditioner.square(parameters)
        if enough and memory.pairs:  # by the Hessian at this point as well
            plain = preconditioner.solve(here.gradient)
            enough = float((here.gradient * plain).sum()) <= accuracy * preconditioner.square(parameters)
        if steps >= max_iter or (enough and _largest(here.gradient) <= tol):
            break
        objective.tilt_accuracy = _TILT_SHARE * decrement
        found = _line_search(objective, parameters, logits, here, direction, decrement, min(1.0, _LONGER * length))
        if found is None:
            break
        moved, logits, new, length = found
        if max(here.curvature, new.curvature) > _OTHER_CURVATURE * min(here.curvature, new.curvature):
            memory.pairs.clear()  # of no use where the curvature is another
        else:
            memory.add(moved - parameters, new.gradient - here.gradient)
        parameters, here, steps = moved, new, steps + 1
    objective.tilt_accuracy = 0.0
    norm = _largest(here.gradient)
    if (norm > tol or (polish and not enough)) and steps < max_iter:
        # The line search is limited by the rounding of the values; Newton's method needs only gradients.
        limit = min(max_iter - steps, _NEWTON_STEPS)
        parameters, here, more = _newton(objective, preconditioner, parameters, here, tol, limit)
        steps += more
    if polish and _largest(here.gradient) <= tol:
        parameters, here, _ = _newton(objective, preconditioner, parameters, here, _POLISHED, _POLISHING_STEPS)
    norm = _largest(here.gradient)
    if norm > tol and warn:
        warnings.warn(
            f"the largest entry of the gradient is {norm:.2g} after {steps} steps, above tol={tol:g}; raise max_iter "
            f"(now {max_iter}) or tol, or lower C",
            ConvergenceWarning,
            stacklevel=3,
        )
    return Solution(parameters, here.value, norm, steps, norm <= tol)


class _Memory:
    """The last steps s and changes y of the gradient."""

    def __init__(self) -> None:
        self.pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=_MEMORY)

    def add(self, step: Tensor, change: Tensor) -> None:
        product = float((step * change).sum())
        if product > 0:
            self.pairs.append((step, change, product))

    def times(self, gradient: Tensor, preconditioner: Preconditioner) -> Tensor:
        """H g by the two-loop recursion."""
        left, lengths = gradient.clone(), []
        for step, change, product in reversed(self.pairs):
            lengths.append(float((step * left).sum()) / product)
            left.add_(change, alpha=-lengths[-1])
        direction = preconditioner.solve(left)
        for (step, change, product), length in zip(self.pairs, reversed(lengths), strict=True):
            direction.add_(step, alpha=length - float((change * direction).sum()) / product)
        return direction


def _line_search(
    objective: ConvexObjective,
    start: Tensor,
    logits: Tensor,
    here: Evaluation,
    direction: Tensor,
    decrement: float,
    length: float,
) -> tuple[Tensor, Tensor, Evaluation, float] | None:
    """The first of shorter and shorter steps, from ``length`` on, that does not go too far; None if there is none.

    f has to fall by 0.3 of what the slope at the start promises, half of it being the most that a quadratic
    function can. A longer step saturates probabilities, and the curvature there is lost. Where values differ by
    rounding only, the slope at the end is the judge. Logits are linear along the direction: a trial takes no product
    with the rows, and the gradient only the step that is made.
    """
    slack, change = _rounding(here), objective.logits(direction)
    for _ in range(_SHORTER):
        moved, moved_logits = torch.sub(start, direction, alpha=length), torch.sub(logits, change, alpha=length)
        promised = length * decrement
        small = promised <= 100 * slack
        limit = here.value + slack if small else here.value - _LEAST_FALL * promised
        new = objective.evaluate(moved, moved_logits, limit=limit)
        fall = here.value - new.value
        if new.value <= limit and (not small or -float((new.gradient * direction).sum()) <= 0.5 * decrement):
            return moved, moved_logits, new, length
        # The minimum of the parabola through both values; a value may be infinite.
        length *= max(promised / (2 * max(promised - fall, promised / 2)), 0.1) if fall > -torch.inf else 0.1
    return None


def _rounding(here: Evaluation) -> float:
    """Differences of values that are rounding."""
    return 16 * torch.finfo(here.gradient.dtype).eps * abs(here.value)


def _newton(
    objective: ConvexObjective,
    preconditioner: Preconditioner,
    parameters: Tensor,
    here: Evaluation,
    tol: float,
    max_iter: int,
) -> tuple[Tensor, Evaluation, int]:
    """Full Newton steps from a point near the minimum, by conjugate gradients, until there is no improvement."""
    steps = 0
    while _largest(here.gradient) > tol and steps < max_iter:
        preconditioner.update(here)
        direction = _newton_direction(objective, preconditioner, parameters, here.gradient, tol)
        moved = parameters - direction
        new = objective.evaluate(moved)
        lower = new.value < here.value or _largest(new.gradient) < _largest(here.gradient)
        if not (lower and new.value <= here.value + _rounding(here)):
            break
        parameters, here, steps = moved, new, steps + 1
    return parameters, here, steps


def _newton_direction(
    objective: ConvexObjective, preconditioner: Preconditioner, parameters: Tensor, gradient: Tensor, tol: float
) -> Tensor:
    product = objective.hessian_product(parameters)
    solution, residual = torch.zeros_like(gradient), gradient.clone()
    solved = preconditioner.solve(residual)
    direction, norm = solved, (residual * solved).sum()
    enough = 1e-12 * float(norm)
    for _ in range(250):
        image = product(direction)
        curved = (direction * image).sum()
        if not float(curved) > 0:
            break
        length = norm / curved
        solution, residual = solution + length * direction, residual - length * image
        solved = preconditioner.solve(residual)
        previous, norm = norm, (residual * solved).sum()
        if float(norm) <= enough or _largest(residual) <= tol / 100:
            break
        direction = solved + norm / previous * direction
    return solution
