"""Selection of lambda_0, C and a scale of the logits by cross-validated log-likelihood.

The search runs on a grid of powers of ten: first along C without augmentation, then over both, in steps of a decade
and finally of half a decade, until no neighbour is better. One search direction raises lambda and the penalty 1/C
together: the directions of the weights hardly change, and the scale corrects their norm. Each point has its own best
scale. Gains below a threshold are ignored. Each fold starts from its solution at the nearest earlier point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isda.estimator.covariances import ClassRows, RowCovariances
from isda.estimator.data import log_likelihood
from isda.estimator.objective import ConvexObjective
from isda.estimator.solver import minimise

_STEPS, _EXACT = 100, 1e-10


def best_scale(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """The s > 0 with the largest sum_i u_i log softmax(s z_i)_y plus one row with the mean logits and uniform labels.

    The sum is concave in s. Without the additional row s would be infinite if each row is classified correctly. s is 1
    for logits that are no better than chance.

    The weights u (N,) are in units of rows.

    Example:
        >>> logits, labels = torch.tensor([[0.1, 0.0], [0.0, 0.1], [0.1, 0.0]]), torch.tensor([0, 1, 0])
        >>> round(best_scale(logits, labels, torch.ones(3)), 2)  # right in 3.5 cases of 4: p = 7/8, 10 log 7
        19.46
    """
    logits, weights = logits.double(), weights.double()
    logits = logits - logits.mean(1, keepdim=True)
    share = weights / weights.sum()
    own = float((share * logits.gather(1, labels.unsqueeze(1)).squeeze(1)).sum())
    known = 1 / (1 + 1 / float(weights.sum()))
    low, high, scale = 0.0, float("inf"), 1.0
    if own > 0:
        scale = 1 / float(logits.square().mean().sqrt())
    for _ in range(_STEPS if own > 0 else 0):
        probabilities = torch.softmax(scale * logits, 1)
        expected = (probabilities * logits).sum(1)
        slope = known * own - float((share * expected).sum())
        curvature = float((share * ((probabilities * logits.square()).sum(1) - expected.square())).sum())
        low, high = (scale, high) if slope > 0 else (low, scale)
        new = scale + slope / curvature if curvature > 0 else high
        if not low < new < high:
            new = (low + high) / 2 if high < float("inf") else 2 * scale
        settled, scale = abs(new - scale) <= _EXACT * scale, new
        if settled:
            break
    return scale


LIMITS_OF_C = (-6.0, 4.0)
LIMITS_OF_STRENGTH = (-2.0, 4.0)
"""Exponents of ten that bound the search."""
_STEPS_OF_FOLDS, _FIRST_C = 200, -1.0
_MIN_GAIN = 1e-4
"""Minimal gain in nats per row of a step, and of augmentation itself."""
_OFF = -float("inf")
"""The exponent of lambda = 0."""

GridPoint = tuple[float, float]
"""Exponents of lambda and C."""


class SelectionFold(NamedTuple):
    """Training and held-out rows of one fold."""

    rows: ClassRows
    covariances: RowCovariances
    inputs: Tensor  # (M, A) held-out rows
    labels: Tensor  # (M,)
    weights: Tensor  # (M,) of the held-out rows
    total: float
    """Sum of the weights of the training rows: C is relative to it."""


class Selection(NamedTuple):
    """The chosen values, and all that were tried."""

    strength: float
    C: float
    scale: float
    results: dict[str, Any]


def select(
    folds: Sequence[SelectionFold],
    *,
    strength: float | None,
    C: float | None,
    scale: float | None,
    bound: str,
    tol: float,
    max_iter: int,
    polish: bool = False,
    offset: Tensor | None = None,
    report: Callable[[str], None] | None = None,
) -> Selection:
    """Choose those of lambda, C and the scale that are None by the mean log-likelihood of held-out rows.

    ``offset`` (C, C) is added to margins in training only; ``report`` is called with a line for every point. See
    `minimise` for ``tol``, ``max_iter`` and ``polish``, which apply to the fit of a fold.
    """
    trials = _Trials(folds, scale, bound, offset, tol, max_iter, polish, report)
    exponent = _OFF if strength is None or strength == 0 else float(np.log10(strength))
    point, augmented = (exponent, _FIRST_C if C is None else float(np.log10(C))), None
    if C is None:
        point = _climb(trials, point, [(0.0, 1.0)], 1.0)
    if strength is None:
        moves = [(1.0, 0.0)] if C is not None else [(1.0, 0.0), (0.0, 1.0), (1.0, -1.0)]
        augmented = _climb(trials, (0.0, point[1]), moves, 1.0)
        augmented = _climb(trials, augmented, moves, 0.5)
    if C is None:
        point = _climb(trials, point, [(0.0, 1.0)], 0.5)
    if augmented is not None and trials.is_better(augmented, point):
        point = augmented
    trials.score(point)
    chosen_strength = strength if strength is not None else _power(point[0])
    inverse = C if C is not None else _power(point[1])
    return Selection(chosen_strength, inverse, trials.scales[point], trials.results(point))


def _climb(trials: _Trials, point: GridPoint, moves: list[GridPoint], size: float) -> GridPoint:
    """Coordinate ascent: move along one direction after the other until no neighbour at this distance is better."""
    settled = False
    while not settled:
        settled = True
        for move in moves:
            for sign in (size, -size):
                while True:
                    neighbour = (point[0] + sign * move[0], point[1] + sign * move[1])
                    if not _within_limits(neighbour) or not trials.is_better(neighbour, point):
                        break
                    point, settled = neighbour, False
    return point


def _within_limits(point: GridPoint) -> bool:
    strength, inverse = point
    inside = strength == _OFF or LIMITS_OF_STRENGTH[0] <= strength <= LIMITS_OF_STRENGTH[1]
    return inside and LIMITS_OF_C[0] <= inverse <= LIMITS_OF_C[1]


def _power(exponent: float) -> float:
    # Rounded so that 10^log10(0.3) is 0.3 again.
    return 0.0 if exponent == _OFF else float(f"{10.0**exponent:.12g}")


@dataclass
class _Trials:
    """Points that were tried, with the scores, the scale and the solutions of all folds at each."""

    folds: Sequence[SelectionFold]
    scale: float | None
    bound: str
    offset: Tensor | None
    tol: float
    max_iter: int
    polish: bool
    report: Callable[[str], None] | None
    scores: dict[GridPoint, list[float]] = field(default_factory=dict)
    scales: dict[GridPoint, float] = field(default_factory=dict)
    solutions: dict[GridPoint, list[Tensor]] = field(default_factory=dict)

    def score(self, point: GridPoint) -> float:
        """Mean log-likelihood of the held-out rows."""
        if point not in self.scores:
            self._try(point)
        sizes = [float(fold.weights.sum()) for fold in self.folds]
        return float(np.average(self.scores[point], weights=sizes))

    def is_better(self, point: GridPoint, other: GridPoint) -> bool:
        """Whether the score exceeds the other's by more than the minimal gain."""
        return self.score(point) > self.score(other) + _MIN_GAIN

    def _try(self, point: GridPoint) -> None:
        solutions = self._solve(point)
        logits = [_logits(solution, fold.inputs) for solution, fold in zip(solutions, self.folds, strict=True)]
        scale = self.scale
        if scale is None:
            labels, weights = (torch.cat([getattr(f, name) for f in self.folds]) for name in ("labels", "weights"))
            scale = best_scale(torch.cat(logits), labels, weights)
        self.scores[point] = [
            log_likelihood(scale * z, fold.labels, fold.weights) for z, fold in zip(logits, self.folds, strict=True)
        ]
        self.scales[point], self.solutions[point] = scale, solutions
        if self.report is not None:
            values = f"lambda_0={_power(point[0]):g} C={_power(point[1]):g} scale={scale:.3g}"
            self.report(f"{values}: held-out log-likelihood {self.score(point):.4f}")

    def _solve(self, point: GridPoint) -> list[Tensor]:
        """The optimum of each fold."""
        starts = self.solutions[self._nearest(point)] if self.solutions else [None] * len(self.folds)
        solutions = []
        for fold, start in zip(self.folds, starts, strict=True):
            objective = ConvexObjective(
                fold.rows,
                fold.covariances,
                strength=_power(point[0]),
                penalty=1 / (_power(point[1]) * fold.total),
                bound=self.bound,
                offset=self.offset,
            )
            steps = min(self.max_iter, _STEPS_OF_FOLDS)
            # Each with its own preconditioner: that of another fold would depend on the labels that are held out here.
            solution = minimise(objective, start, tol=self.tol, max_iter=steps, warn=False, polish=self.polish)
            solutions.append(solution.parameters)
        return solutions

    def _nearest(self, point: GridPoint) -> GridPoint:
        def distance(other: GridPoint) -> float:
            lowest = LIMITS_OF_STRENGTH[0] - 1
            return abs(max(other[0], lowest) - max(point[0], lowest)) + abs(other[1] - point[1])

        return min(self.solutions, key=distance)

    def results(self, chosen: GridPoint) -> dict[str, Any]:
        """Columns like those of scikit-learn's cv_results_."""
        points = list(self.scores)
        table = np.array([self.scores[point] for point in points])
        means = np.array([self.score(point) for point in points])
        columns: dict[str, Any] = {
            "param_lambda_0": np.array([_power(point[0]) for point in points]),
            "param_C": np.array([_power(point[1]) for point in points]),
            "params": [{"lambda_0": _power(point[0]), "C": _power(point[1])} for point in points],
            "scale": np.array([self.scales[point] for point in points]),
            "mean_test_score": means,
            "std_test_score": table.std(1),
            "rank_test_score": np.array([1 + int((means > mean).sum()) for mean in means]),
        }
        for number in range(table.shape[1]):
            columns[f"split{number}_test_score"] = table[:, number]
        columns["best_index"] = points.index(chosen)
        return columns


def _logits(parameters: Tensor, inputs: Tensor) -> Tensor:
    """(M, C) of rows (M, A)."""
    logits = torch.addmm(parameters[:, -1], inputs, parameters[:, :-1].t())
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits
