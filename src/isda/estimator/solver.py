"""Minimiser of the convex objective: preconditioned L-BFGS, then Newton's method.

Around the start the Hessian is about h (T + lambda S) + penalty I for each class, with the second moments T of the
rows, the average covariance S and h = (1 - 1/C) / C. With its Cholesky factor L the parameters W = V L^-1 make that
the identity, and L-BFGS needs a few dozen steps instead of hundreds for correlated features.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from isda.estimator.objective import ConvexObjective

_NEWTON_STEPS, _POLISHING_STEPS = 10, 20
_POLISHED = 1e-13


class Solution(NamedTuple):
    """The result of a minimisation."""

    parameters: Tensor  # (K, A + 1)
    value: float
    gradient_norm: float
    """Largest absolute entry of the gradient."""
    n_iter: int
    converged: bool


class Preconditioner:
    """Coordinates in which the Hessian of an objective is close to the identity."""

    def __init__(self, objective: ConvexObjective) -> None:
        rows, average = objective.rows, objective.covariances.average
        classes, dim = rows.num_classes, rows.inputs.shape[1]
        share = 1 / 4 if classes == 2 else (1 - 1 / classes) / classes
        weighted = rows.inputs * (share * rows.loss_weights).unsqueeze(1)
        matrix = torch.mm(weighted.t(), rows.inputs).double()
        if average is not None and objective.strength:
            matrix = matrix.add_(average.double(), alpha=share * objective.strength)
        # A floor far below every curvature that matters, for objectives without a penalty.
        floor = 1e-10 * float(matrix.diagonal().mean()) + 1e-30
        matrix.diagonal().add_(max(objective.penalty, floor))
        factor, failed = torch.linalg.cholesky_ex(matrix)
        while failed and floor <= float(matrix.diagonal().sum()):
            # Failed by rounding. The minimum does not depend on the coordinates.
            floor *= 100
            matrix.diagonal().add_(floor)
            factor, failed = torch.linalg.cholesky_ex(matrix)
        if failed:
            raise ValueError("rows and weights must have finite second moments, got NaN or infinity")
        inverse = torch.linalg.solve_triangular(factor, torch.eye(dim, dtype=matrix.dtype), upper=False)
        self._inverse = inverse.to(rows.inputs.dtype)
        self._root = share**0.5
        self._factor = factor.to(rows.inputs.dtype)

    def parameters(self, coordinates: Tensor) -> Tensor:
        """(K, A + 1) parameters from coordinates of the same shape."""
        return torch.cat([coordinates[:, :-1] @ self._inverse, coordinates[:, -1:] / self._root], 1)

    def coordinates(self, parameters: Tensor) -> Tensor:
        """The inverse map."""
        return torch.cat([parameters[:, :-1] @ self._factor, parameters[:, -1:] * self._root], 1)

    def pull(self, gradient: Tensor) -> Tensor:
        """The gradient with respect to the coordinates."""
        return torch.cat([gradient[:, :-1] @ self._inverse.t(), gradient[:, -1:] / self._root], 1)


def minimise(
    objective: ConvexObjective,
    start: Tensor | None = None,
    *,
    tol: float,
    max_iter: int,
    warn: bool = True,
    polish: bool = False,
) -> Solution:
    """Minimise until no entry of the gradient is larger than ``tol``; warn (ConvergenceWarning) if that fails.

    ``start`` is (K, A + 1) parameters, by default zeros. ``polish`` continues after ``tol`` was reached, by a few
    Newton steps to the accuracy of the dtype.
    """
    if start is None:
        start = objective.rows.inputs.new_zeros(objective.shape)
    preconditioner = Preconditioner(objective)
    search = _ScipyObjective(objective, preconditioner, tol)
    outcome = minimize(
        search.evaluate,
        preconditioner.coordinates(start).flatten().double().numpy(),
        jac=True,
        method="L-BFGS-B",
        callback=search.stop_when_converged,
        options={"maxcor": 10, "maxiter": max_iter, "maxfun": 20 * max_iter, "ftol": 0.0, "gtol": 0.0, "maxls": 50},
    )
    parameters, value, gradient = search.best
    steps = int(outcome.nit)
    if search.norm > tol and steps < max_iter:
        # The line search is limited by the rounding of the values; Newton's method needs only gradients.
        limit = min(max_iter - steps, _NEWTON_STEPS)
        parameters, value, gradient, more = _newton(objective, preconditioner, search.best, tol, limit)
        steps += more
    if polish and float(gradient.abs().max()) <= tol:
        point = parameters, value, gradient
        parameters, value, gradient, _ = _newton(objective, preconditioner, point, _POLISHED, _POLISHING_STEPS)
    norm = float(gradient.abs().max())
    if norm > tol and warn:
        warnings.warn(
            f"the largest entry of the gradient is {norm:.2g} after {steps} steps, above tol={tol:g}; raise max_iter "
            f"(now {max_iter}) or tol, or lower C",
            ConvergenceWarning,
            stacklevel=3,
        )
    return Solution(parameters, value, norm, steps, norm <= tol)


class _ScipyObjective:
    """Value and gradient for scipy, and the best point so far."""

    def __init__(self, objective: ConvexObjective, preconditioner: Preconditioner, tol: float) -> None:
        self.objective, self.preconditioner, self.tol = objective, preconditioner, tol
        self.norm = float("inf")
        self.best: tuple[Tensor, float, Tensor]

    def evaluate(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        coordinates = torch.from_numpy(flat).view(self.objective.shape).to(self.objective.rows.inputs.dtype)
        parameters = self.preconditioner.parameters(coordinates)
        value, gradient = self.objective.evaluate(parameters)
        norm = float(gradient.abs().max())
        if norm <= self.norm or not hasattr(self, "best"):
            self.norm, self.best = norm, (parameters, value, gradient)
        return value, self.preconditioner.pull(gradient).flatten().double().numpy()

    def stop_when_converged(self, intermediate_result: object) -> None:
        if self.norm <= self.tol:
            raise StopIteration


def _newton(
    objective: ConvexObjective,
    preconditioner: Preconditioner,
    start: tuple[Tensor, float, Tensor],
    tol: float,
    max_iter: int,
) -> tuple[Tensor, float, Tensor, int]:
    """Full Newton steps from a point near the minimum, by conjugate gradients, until there is no improvement."""
    (parameters, value, gradient), steps = start, 0
    while float(gradient.abs().max()) > tol and steps < max_iter:
        direction = _newton_direction(objective, preconditioner, parameters, gradient, tol)
        moved = parameters - direction
        new_value, new_gradient = objective.evaluate(moved)
        if not (new_value < value or float(new_gradient.abs().max()) < float(gradient.abs().max())):
            break
        parameters, value, gradient, steps = moved, new_value, new_gradient, steps + 1
    return parameters, value, gradient, steps


def _newton_direction(
    objective: ConvexObjective, preconditioner: Preconditioner, parameters: Tensor, gradient: Tensor, tol: float
) -> Tensor:
    product = objective.hessian_product(parameters)
    solution, residual = torch.zeros_like(gradient), preconditioner.pull(gradient)
    direction, norm = residual, residual.square().sum()
    enough = max(1e-12 * float(norm), (tol / 100) ** 2)
    for _ in range(250):
        image = preconditioner.pull(product(preconditioner.parameters(direction)))
        curved = (direction * image).sum()
        if not float(curved) > 0:
            break
        length = norm / curved
        solution, residual = solution + length * direction, residual - length * image
        previous, norm = norm, residual.square().sum()
        if float(norm) <= enough:
            break
        direction = residual + norm / previous * direction
    return preconditioner.parameters(solution)
