"""Selection of lambda_0, C and a scale of the logits by cross-validated log-likelihood.

The search runs on a grid of powers of ten: first along C without augmentation, then over both, in steps of a decade
and finally of half a decade, until no neighbour is better. One search direction raises lambda and the penalty 1/C
together: the directions of the weights hardly change, and the scale corrects their norm. Each point has its own best
scale. Gains below a threshold are ignored. Each fold starts from its solution at the nearest earlier point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isda.estimator.covariances import ClassRows, RowCovariances
from isda.estimator.objective import ConvexObjective
from isda.estimator.solver import minimise

# One factor on all logits, by the likelihood of held-out rows.
#
# A strong augmentation finds good directions and small logits: it is afraid of samples that nobody will see. How large
# logits should be is a question of its own, which one number answers.

_STEPS, _EXACT = 100, 1e-10


def best_scale(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """The s > 0 with the largest sum_i u_i log softmax(s z_i)_y, and one further row whose class is unknown.

    The sum is concave in s. Without the further row, which has the logits of all others and every label alike, s would
    be infinite where each row is classified rightly. Logits that are no better than chance keep their size.

    Args:
        logits: (N, C).
        labels: (N,).
        weights: (N,) u, in units of rows; their sum is how many rows there are beside the further one.

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


# The strength lambda_0, the inverse penalty C and a scale of the logits, chosen by cross-validated log-likelihood.
#
# The search walks a lattice of powers of ten: first along C without augmentation, then over both, in steps of a decade
# and at last of half a decade, to a point that is better than its neighbours on every side. One of the ways it tries is
# along lambda C: penalty and augmentation grow alike, the directions of the weights hardly change, and the scale makes
# good what their size loses. Every point has the scale that is best for it. So the choice lies inside
# of what was tried, or at the limits below. What gains next to nothing is not better: where rows are easy, all of a
# wide plain is equally good, and a walk to its highest pebble would tell of rounding. Each fold starts a point from its
# solution at the nearest one before.

LIMITS_OF_C = (-6.0, 4.0)
LIMITS_OF_STRENGTH = (-2.0, 4.0)
"""Powers of ten between which the search stays: a weaker augmentation is none, a weaker penalty too."""
_STEPS_OF_FOLDS, _FIRST_C = 200, -1.0
_MIN_GAIN = 1e-4
"""Nats per row that a step, or augmentation itself, must gain."""
_OFF = -float("inf")
"""The exponent of lambda = 0."""

GridPoint = tuple[float, float]
"""Exponents of lambda and C."""


class SelectionFold(NamedTuple):
    """One fold: what is trained on, and what is held out."""

    rows: ClassRows
    covariances: RowCovariances
    inputs: Tensor
    """(M, A) held-out rows."""
    labels: Tensor
    """(M,)."""
    weights: Tensor
    """(M,) of the held-out rows."""
    total: float
    """Sum of the weights of the training rows: C is relative to it."""


class Selection(NamedTuple):
    """What was chosen, and everything that was tried."""

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
    """Choose lambda, C and the scale, those of them that are None, by the mean log-likelihood of held-out rows.

    Args:
        folds: the folds.
        strength: lambda, or None to choose it.
        C: inverse penalty, or None to choose it.
        scale: factor on the logits, or None to choose it.
        bound: "jensen" or "tilted".
        tol: largest entry of the gradient of a fold's fit.
        max_iter: steps of a fold's fit at most.
        polish: whether a fold's fit goes on to the accuracy of the numbers.
        offset: (C, C) of margins, in training alone; None for zeros.
        report: called with a line for every point, or None.
    """
    trials = _Trials(folds, scale, bound, offset, tol, max_iter, polish, report)
    along_strength = strength is None
    at_strength = _OFF if strength is None or strength == 0 else float(np.log10(strength))
    point = (at_strength, _FIRST_C if C is None else float(np.log10(C)))
    if C is None:
        point = _descend(trials, point, [(0.0, 1.0)], 1.0)
    if along_strength:
        start = (0.0, point[1])
        moves = [(1.0, 0.0)] if C is not None else [(1.0, 0.0), (0.0, 1.0), (1.0, -1.0)]
        augmented = _descend(trials, start, moves, 1.0)
        augmented = _descend(trials, augmented, moves, 0.5)
        if C is None:
            point = _descend(trials, point, [(0.0, 1.0)], 0.5)
        if trials.is_better(augmented, point):
            point = augmented
    elif C is None:
        point = _descend(trials, point, [(0.0, 1.0)], 0.5)
    trials.score(point)
    chosen_strength = strength if strength is not None else _power(point[0])
    inverse = C if C is not None else _power(point[1])
    return Selection(chosen_strength, inverse, trials.scale(point), trials.results(point))


def _descend(trials: _Trials, point: GridPoint, moves: list[GridPoint], size: float) -> GridPoint:
    """Walk one way after the other until no neighbour at this distance is better."""
    settled = False
    while not settled:
        settled = True
        for move in moves:
            for sign in (size, -size):
                while True:
                    there = (point[0] + sign * move[0], point[1] + sign * move[1])
                    if not _within_limits(there) or not trials.is_better(there, point):
                        break
                    point, settled = there, False
    return point


def _within_limits(point: GridPoint) -> bool:
    strength, inverse = point
    inside = strength == _OFF or LIMITS_OF_STRENGTH[0] <= strength <= LIMITS_OF_STRENGTH[1]
    return inside and LIMITS_OF_C[0] <= inverse <= LIMITS_OF_C[1]


def _power(exponent: float) -> float:
    # As many digits as a logarithm gives back: 0.3 is 0.3 again.
    return 0.0 if exponent == _OFF else float(f"{10.0**exponent:.12g}")


class _Trials:
    """Points that were tried, and the solutions of all folds at each."""

    def __init__(
        self,
        folds: Sequence[SelectionFold],
        scale: float | None,
        bound: str,
        offset: Tensor | None,
        tol: float,
        max_iter: int,
        polish: bool,
        report: Callable[[str], None] | None,
    ) -> None:
        self._folds, self._scale, self._bound, self._offset = folds, scale, bound, offset
        self._tol, self._max_iter, self._polish, self._report = tol, max_iter, polish, report
        self._scores: dict[GridPoint, list[float]] = {}
        self._scales: dict[GridPoint, float] = {}
        self._solutions: dict[GridPoint, list[Tensor]] = {}

    def score(self, point: GridPoint) -> float:
        """Mean log-likelihood of the held-out rows."""
        if point not in self._scores:
            self._try(point)
        sizes = [float(fold.weights.sum()) for fold in self._folds]
        return float(np.average(self._scores[point], weights=sizes))

    def scale(self, point: GridPoint) -> float:
        """The factor on the logits at a point that was tried."""
        return self._scales[point]

    def is_better(self, one: GridPoint, than: GridPoint) -> bool:
        """Whether it is worth going there."""
        return self.score(one) > self.score(than) + _MIN_GAIN

    def _try(self, point: GridPoint) -> None:
        solutions = self._solved(point)
        logits = [_logits(found, fold.inputs) for found, fold in zip(solutions, self._folds, strict=True)]
        scale = self._best_scale(logits) if self._scale is None else self._scale
        self._scores[point] = [_log_likelihood(scale * z, fold) for z, fold in zip(logits, self._folds, strict=True)]
        self._scales[point], self._solutions[point] = scale, solutions
        if self._report is not None:
            told = f"lambda_0={_power(point[0]):g} C={_power(point[1]):g} scale={scale:.3g}"
            self._report(f"{told}: held-out log-likelihood {self.score(point):.4f}")

    def _solved(self, point: GridPoint) -> list[Tensor]:
        """The optimum of each fold."""
        starts = self._solutions[self._nearest(point)] if self._solutions else [None] * len(self._folds)
        solved = []
        for fold, start in zip(self._folds, starts, strict=True):
            objective = ConvexObjective(
                fold.rows,
                fold.covariances,
                strength=_power(point[0]),
                penalty=1 / (_power(point[1]) * fold.total),
                bound=self._bound,
                offset=self._offset,
            )
            # In coordinates of its own: those of another fold know the labels that are held out here, and a search that
            # stops early shows it.
            found = minimise(
                objective,
                start,
                tol=self._tol,
                max_iter=min(self._max_iter, _STEPS_OF_FOLDS),
                warn=False,
                polish=self._polish,
            )
            solved.append(found.parameters)
        return solved

    def _best_scale(self, logits: list[Tensor]) -> float:
        labels = torch.cat([fold.labels for fold in self._folds])
        return best_scale(torch.cat(logits), labels, torch.cat([fold.weights for fold in self._folds]))

    def _nearest(self, point: GridPoint) -> GridPoint:
        def distance(other: GridPoint) -> float:
            lowest = LIMITS_OF_STRENGTH[0] - 1
            return abs(max(other[0], lowest) - max(point[0], lowest)) + abs(other[1] - point[1])

        return min(self._solutions, key=distance)

    def results(self, chosen: GridPoint) -> dict[str, Any]:
        """Columns like those of scikit-learn's cv_results_."""
        points = list(self._scores)
        table = np.array([self._scores[point] for point in points])
        means = np.array([self.score(point) for point in points])
        columns: dict[str, Any] = {
            "param_lambda_0": np.array([_power(point[0]) for point in points]),
            "param_C": np.array([_power(point[1]) for point in points]),
            "params": [{"lambda_0": _power(point[0]), "C": _power(point[1])} for point in points],
            "scale": np.array([self._scales[point] for point in points]),
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


def _log_likelihood(logits: Tensor, fold: SelectionFold) -> float:
    """Weighted mean of log p(y | x) over the held-out rows."""
    picked = torch.log_softmax(logits, 1).gather(1, fold.labels.unsqueeze(1)).squeeze(1)
    return float((picked * fold.weights).sum() / fold.weights.sum())
