"""Selection of lambda_0, C, the scaling of features and a scale of the logits by cross-validated log-likelihood.

The search runs on a grid of powers of ten: first along C without augmentation, then over both, in steps of a decade
and finally of half a decade, until no neighbour is better. One search direction raises lambda and the penalty 1/C
together: the directions of the weights hardly change, and the scale corrects their norm. Each point has its own best
scale. Gains below a threshold are ignored. Each fold starts from its solution at the nearest earlier point. Of
several scalings of the features the first is searched like this, each further one from the optima of the one before.

Two points are compared after two folds already. If the mean difference of their held-out rows' log-likelihoods is
more than two standard errors from the threshold, that decides; otherwise, and for the chosen point, the other folds are
solved as well. Points that never need them get the score of the chosen point plus the mean difference in two folds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.utils.parallel import Parallel, delayed
from torch import Tensor

from isda.estimator.covariances import RowCovariances
from isda.estimator.data import Standardize, log_likelihoods
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
    # Class by class in memory: reductions over few classes are much faster.
    logits, weights = logits.t().double().contiguous(), weights.double()
    logits -= logits.mean(0)
    squares, share = logits.square(), weights / weights.sum()
    own = float(share @ logits.gather(0, labels.unsqueeze(0)).squeeze(0))
    known = 1 / (1 + 1 / float(weights.sum()))
    low, high, scale = 0.0, float("inf"), 1.0
    if own > 0:
        scale = 1 / float(squares.mean().sqrt())
    for _ in range(_STEPS if own > 0 else 0):
        probabilities = torch.softmax(scale * logits, 0)
        expected = (probabilities * logits).sum(0)
        slope = known * own - float(share @ expected)
        curvature = float(share @ ((probabilities * squares).sum(0) - expected.square()))
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
_FIRST_FOLDS, _STANDARD_ERRORS = 2, 2.0
"""So many folds decide between points if the difference is so many standard errors away from the minimal gain."""
_OFF = -float("inf")
"""The exponent of lambda = 0."""

GridPoint = tuple[float, float]
"""Exponents of lambda and C."""


class SelectionFold(NamedTuple):
    """Training and held-out rows of one fold."""

    covariances: RowCovariances
    """Of the training rows."""
    inputs: Tensor  # (M, A) held-out rows
    labels: Tensor  # (M,)
    weights: Tensor  # (M,) of the held-out rows
    total: float
    """Sum of the weights of the training rows: C is relative to it."""
    to_features: Callable[[Tensor], Tensor]
    """Parameters (K, R + 1) of these rows as those (K, A + 1) of the features as they came."""
    from_features: Callable[[Tensor], Tensor]
    """The inverse, for weights in the span of the rows."""


class Selection(NamedTuple):
    """The chosen values, and all that were tried."""

    standardize: Standardize
    strength: float
    C: float
    scale: float
    results: dict[str, Any]
    start: NDArray[Any]
    """(K, A + 1) mean parameters of the folds at these values, for the features as they came."""


def select(
    folds: Mapping[Standardize, Callable[[], Sequence[SelectionFold]]],
    *,
    strength: float | None,
    C: float | None,
    scale: float | None,
    bound: str,
    accuracy: float,
    max_iter: int,
    polish: bool = False,
    offset: Tensor | None = None,
    n_jobs: int | None = None,
    report: Callable[[str], None] | None = None,
) -> Selection:
    """Choose a scaling, and those of lambda, C and the scale that are None, by the log-likelihood of held-out rows.

    ``folds`` makes the folds of each scaling. ``offset`` (C, C) is added to margins in training only; ``report`` is
    called with a line for every point. See `minimise` for ``accuracy``, ``max_iter`` and ``polish``, which apply to the
    fit of a fold.
    """
    found: dict[Standardize, _Found] = {}
    best: Standardize | None = None
    last, before, start = None, None, torch.empty(0)
    for standardize, make_folds in folds.items():
        name = f"standardize={standardize} " if len(folds) > 1 else ""
        line = None if report is None else partial(_report, report, name)
        trials = _Trials(make_folds(), scale, bound, offset, accuracy, max_iter, polish, n_jobs, line, before)
        last = found[standardize] = _search(trials, strength, C, last)
        before = trials
        if best is None or last.score > found[best].score + _MIN_GAIN:
            best, start = standardize, trials.mean_parameters(last.point)
    if best is None:
        raise ValueError("folds must hold at least one scaling, got none")
    return Selection(
        best,
        strength if strength is not None else _power(found[best].point[0]),
        C if C is not None else _power(found[best].point[1]),
        found[best].trials[found[best].point].scale,
        _results(found, best),
        start.numpy(),
    )


def held_out_logits(
    folds: Sequence[SelectionFold],
    *,
    strength: float,
    C: float,
    bound: str,
    accuracy: float,
    max_iter: int,
    polish: bool = False,
    offset: Tensor | None = None,
    n_jobs: int | None = None,
) -> list[Tensor]:
    """(M, C) logits of the held-out rows of each fold, without a scale; see `select`."""
    trials = _Trials(folds, None, bound, offset, accuracy, max_iter, polish, n_jobs, None)
    solutions = trials.solve(_grid_point(strength, C), range(len(folds)))
    return [_logits(solution, fold.inputs) for solution, fold in zip(solutions, folds, strict=True)]


def _report(report: Callable[[str], None], name: str, line: str) -> None:
    report(name + line)


class _Trial(NamedTuple):
    """The result of one point."""

    scale: float
    score: float
    """Mean log-likelihood of the held-out rows of all folds."""
    scores: list[float]
    """That of each fold, or of the first two only."""
    each: Tensor
    """Log-likelihoods of the held-out rows of the first two folds, with the best scale for these."""


class _Found(NamedTuple):
    """The result of a search with one scaling."""

    point: GridPoint
    plain: GridPoint
    """The optimum along C, without augmentation or with the given one."""
    augmented: GridPoint | None
    """The optimum with augmentation, if its strength is chosen."""
    score: float
    trials: dict[GridPoint, _Trial]


def _search(trials: _Trials, strength: float | None, C: float | None, start: _Found | None) -> _Found:
    """Search the grid, from its standard points or from the optima of another scaling."""
    plain, augmented = _grid_point(strength or 0.0, 10**_FIRST_C if C is None else C), None
    if start is not None:
        plain, augmented = start.plain, start.augmented
    if C is None:
        plain = _climb(trials, plain, [(0.0, 1.0)], 1.0)
    if strength is None:
        moves = [(1.0, 0.0)] if C is not None else [(1.0, 0.0), (0.0, 1.0), (1.0, -1.0)]
        augmented = _climb(trials, augmented or (0.0, plain[1]), moves, 1.0)
        augmented = _climb(trials, augmented, moves, 0.5)
    if C is None:
        plain = _climb(trials, plain, [(0.0, 1.0)], 0.5)
    point = augmented if augmented is not None and trials.is_better(augmented, plain) else plain
    trials.estimate(point)
    return _Found(point, plain, augmented, trials.score(point), trials.trials)


def _results(found: Mapping[Standardize, _Found], best: Standardize) -> dict[str, Any]:
    """Columns like those of scikit-learn's cv_results_; the scaling is among them if it was chosen."""
    keys = [(standardize, point) for standardize, search in found.items() for point in search.trials]
    trials = [found[standardize].trials[point] for standardize, point in keys]
    folds = max(len(trial.scores) for trial in trials)
    table = np.array([trial.scores + [np.nan] * (folds - len(trial.scores)) for trial in trials])
    means = np.array([trial.score for trial in trials])
    params: list[dict[str, Any]] = [{"lambda_0": _power(point[0]), "C": _power(point[1])} for _, point in keys]
    if len(found) > 1:
        for row, (standardize, _) in zip(params, keys, strict=True):
            row["standardize"] = standardize
    columns: dict[str, Any] = {
        "param_lambda_0": np.array([row["lambda_0"] for row in params]),
        "param_C": np.array([row["C"] for row in params]),
        "param_standardize": np.array([standardize for standardize, _ in keys], dtype=object),
        "params": params,
        "scale": np.array([trial.scale for trial in trials]),
        "mean_test_score": means,
        "std_test_score": np.nanstd(table, axis=1),
        "n_folds": np.array([len(trial.scores) for trial in trials]),
        "rank_test_score": np.array([1 + int((means > mean).sum()) for mean in means]),
    }
    for number in range(table.shape[1]):
        columns[f"split{number}_test_score"] = table[:, number]
    columns["best_index"] = keys.index((best, found[best].point))
    return columns


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


def _grid_point(strength: float, C: float) -> GridPoint:
    return float(np.log10(strength)) if strength else _OFF, float(np.log10(C))


def _power(exponent: float) -> float:
    # Rounded so that 10^log10(0.3) is 0.3 again.
    return 0.0 if exponent == _OFF else float(f"{10.0**exponent:.12g}")


class _Start(NamedTuple):
    """Where the search of a fold begins."""

    candidates: list[Tensor]
    """The one with the lowest objective is taken; zeros if there is none."""
    near: bool
    """Whether one of them is for a point with augmentation."""


@dataclass
class _Trials:
    """Points that were tried, and the solutions of all folds at each."""

    folds: Sequence[SelectionFold]
    scale: float | None
    bound: str
    offset: Tensor | None
    accuracy: float
    max_iter: int
    polish: bool
    n_jobs: int | None
    report: Callable[[str], None] | None
    before: _Trials | None = None
    """Those of another scaling."""
    trials: dict[GridPoint, _Trial] = field(default_factory=dict)
    solutions: dict[GridPoint, list[Tensor]] = field(default_factory=dict)

    def score(self, point: GridPoint) -> float:
        """Mean log-likelihood of the held-out rows of all folds."""
        return self._complete(point).score

    def is_better(self, point: GridPoint, other: GridPoint) -> bool:
        """Whether the score exceeds the other's by more than the minimal gain, by two folds where that is clear."""
        second = self._begin(other)
        first = self._begin(point)
        if not (self._is_complete(first) and self._is_complete(second)):
            gain, error = self._mean_gain(first.each - second.each)
            if abs(gain - _MIN_GAIN) > _STANDARD_ERRORS * error:
                return gain > _MIN_GAIN
        return self.score(point) > self.score(other) + _MIN_GAIN

    def estimate(self, best: GridPoint) -> None:
        """Score points with two folds: the score of the best point plus the mean difference in these folds."""
        whole = self._complete(best)
        for point, trial in self.trials.items():
            if not self._is_complete(trial):
                gain, _ = self._mean_gain(trial.each - whole.each)
                self.trials[point] = trial._replace(score=whole.score + gain)

    def _is_complete(self, trial: _Trial) -> bool:
        return len(trial.scores) == len(self.folds)

    def _begin(self, point: GridPoint) -> _Trial:
        """The result of at least the first folds."""
        if point not in self.trials:
            self.solutions[point] = self.solve(point, range(min(_FIRST_FOLDS, len(self.folds))))
            self._keep(point, self._trial(point))
        return self.trials[point]

    def _complete(self, point: GridPoint) -> _Trial:
        """The result of all folds."""
        trial = self._begin(point)
        if not self._is_complete(trial):
            self.solutions[point] += self.solve(point, range(len(trial.scores), len(self.folds)))
            self._keep(point, self._trial(point)._replace(each=trial.each))
        return self.trials[point]

    def _keep(self, point: GridPoint, trial: _Trial) -> None:
        self.trials[point] = trial
        if self.report is not None:
            values = f"lambda_0={_power(point[0]):g} C={_power(point[1]):g} scale={trial.scale:.3g}"
            part = "" if self._is_complete(trial) else f" ({len(trial.scores)} folds)"
            self.report(f"{values}: held-out log-likelihood {trial.score:.4f}{part}")

    def _trial(self, point: GridPoint) -> _Trial:
        """The scale of the logits of the folds that are solved, and their scores."""
        solutions, scale = self.solutions[point], self.scale
        folds = self.folds[: len(solutions)]
        logits = [_logits(solution, fold.inputs) for solution, fold in zip(solutions, folds, strict=True)]
        if scale is None:
            labels, weights = (torch.cat([getattr(f, name) for f in folds]) for name in ("labels", "weights"))
            scale = best_scale(torch.cat(logits), labels, weights)
        each = [log_likelihoods(scale * z, fold.labels) for z, fold in zip(logits, folds, strict=True)]
        totals = [float(fold.weights.sum()) for fold in folds]
        sums = [float(fold.weights.double() @ rows) for fold, rows in zip(folds, each, strict=True)]
        scores = [part / total if total else 0.0 for part, total in zip(sums, totals, strict=True)]
        score = float(np.average(scores, weights=totals))
        return _Trial(scale, score, scores, torch.cat(each[:_FIRST_FOLDS]))

    def _mean_gain(self, gains: Tensor) -> tuple[float, float]:
        """The weighted mean of the rows of the first folds, and its standard error."""
        weights = torch.cat([fold.weights for fold in self.folds[:_FIRST_FOLDS]]).double()
        weights /= weights.sum()
        mean = float(weights @ gains)
        return mean, float((weights.square() @ (gains - mean).square()).sqrt())

    def solve(self, point: GridPoint, numbers: range) -> list[Tensor]:
        """The optimum of each of these folds."""
        folds = {number: self.folds[number] for number in numbers}
        calls = [(point, fold.covariances, fold.total, self._start(point, n)) for n, fold in folds.items()]
        jobs = min(effective_n_jobs(self.n_jobs), len(calls))
        if jobs == 1:
            return [self._solve_fold(*call) for call in calls]
        # Without the other folds and solutions: that is all a process has to be sent.
        alone = replace(self, folds=(), trials={}, solutions={}, report=None, before=None)
        pending = (delayed(_with_one_thread)(alone, *call) for call in calls)
        return list(Parallel(n_jobs=jobs)(pending))

    def mean_parameters(self, point: GridPoint) -> Tensor:
        """(K, A + 1) of all folds at a point, for the features as they came."""
        each = [fold.to_features(found) for fold, found in zip(self.folds, self.solutions[point], strict=True)]
        return torch.stack(each).mean(0)

    def _solve_fold(self, point: GridPoint, covariances: RowCovariances, total: float, start: _Start) -> Tensor:
        objective = ConvexObjective(
            covariances.rows,
            covariances,
            strength=_power(point[0]),
            penalty=1 / (_power(point[1]) * total),
            bound=self.bound,
            offset=self.offset,
        )
        steps = min(self.max_iter, _STEPS_OF_FOLDS)
        search: dict[str, Any] = {"max_iter": steps, "warn": False, "polish": self.polish, "near": start.near}
        first = None
        if start.candidates:
            first = min(start.candidates, key=lambda parameters: objective.evaluate(parameters, limit=-torch.inf).value)
        return minimise(objective, first, tol=torch.inf, accuracy=self.accuracy, **search).parameters

    def _start(self, point: GridPoint, number: int) -> _Start:
        """Parameters of a fold to start from.

        The solution at the nearest point; halfway between two points the mean of theirs; further on in the direction
        of two points what they extrapolate to: weights grow about linearly with the logarithms of C and 1 / lambda. Of
        another scaling the solution at the same point.
        """

        def distance(other: GridPoint) -> float:
            lowest = LIMITS_OF_STRENGTH[0] - 1
            return abs(max(other[0], lowest) - max(point[0], lowest)) + abs(other[1] - point[1])

        solved = {other: found[number] for other, found in self.solutions.items() if number < len(found)}
        candidates, near = [], False
        if solved:
            nearest = min(solved, key=distance)
            opposite, behind = _mirrored(nearest, point), _mirrored(point, nearest)
            near = nearest[0] > _OFF
            if opposite in solved:
                candidates.append((solved[nearest] + solved[opposite]) / 2)
            else:
                candidates.append(solved[nearest])
                if behind in solved:
                    candidates.append(2 * solved[nearest] - solved[behind])
        if self.before is not None and number < len(self.before.solutions.get(point, ())):
            elsewhere = self.before.folds[number].to_features(self.before.solutions[point][number])
            candidates.append(self.folds[number].from_features(elsewhere))
            near = True
        return _Start(candidates, near=near)


def _mirrored(point: GridPoint, centre: GridPoint) -> GridPoint:
    """The point on the other side of the centre; lambda = 0 only if both have it."""
    off = point[0] == centre[0] == _OFF
    return _OFF if off else 2 * centre[0] - point[0], 2 * centre[1] - point[1]


def _with_one_thread(
    trials: _Trials, point: GridPoint, covariances: RowCovariances, total: float, start: _Start
) -> Tensor:
    """Solve a fold in a process of its own: several processes with several threads each are slower."""
    torch.set_num_threads(1)
    return trials._solve_fold(point, covariances, total, start)


def _logits(parameters: Tensor, inputs: Tensor) -> Tensor:
    """(M, C) of rows (M, A)."""
    logits = torch.addmm(parameters[:, -1:], parameters[:, :-1], inputs.t()).t()
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits
