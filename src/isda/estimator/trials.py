"""Points of the search for lambda_0 and C: the solutions of their folds, and comparisons by as few folds as decide.

Two points are compared on the rows that the first fold holds out, then on those of two folds, then of all. The
comparison ends as soon as the mean difference of the rows' log-likelihoods is several standard errors away from the
threshold, or certain to be too small to matter. Folds are made and solved when a comparison needs them, at first to an
accuracy of some percent of the score, and further where that leaves a comparison open. Each starts from its solutions
at the nearest earlier points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from joblib import effective_n_jobs
from sklearn.utils.parallel import Parallel, delayed
from torch import Tensor

from isda.estimator.covariances import RowCovariances, class_centres
from isda.estimator.data import best_scale, log_likelihoods
from isda.estimator.objective import ConvexObjective
from isda.estimator.solver import minimise

GridPoint = tuple[float, float]
"""Exponents of lambda and C."""
OFF = -float("inf")
"""The exponent of lambda = 0."""
LIMITS_OF_C = (-6.0, 4.0)
LIMITS_OF_STRENGTH = (-2.0, 4.0)
"""Exponents of ten that bound the search."""
MIN_GAIN = 1e-4
"""Minimal gain in nats per row of a step, and of augmentation itself."""
_SMALL_GAIN = 1e-3
"""Where two points differ by less than this, in nats per row, the folds that have shown it decide."""
_ONE_FOLD_ROWS = 100
"""Held-out rows from which on one fold may decide."""
_STANDARD_ERRORS = {1: 3.0, 2: 2.0}
"""So many from the threshold decide, by the number of folds."""
_STEPS_OF_FOLDS = 200
_START_ACCURACY = 1e-2
"""In nats, of the tilted bounds by which a start is chosen."""
_ROUGH, _ROUGH_ERROR = 1e-4, 0.02
"""The accuracy of the first solution of a fold, and the error that it leaves of the score, relative to it."""


def power(exponent: float) -> float:
    """Ten to this power, rounded so that 10^log10(0.3) is 0.3 again."""
    return 0.0 if exponent == OFF else float(f"{10.0**exponent:.12g}")


def within_limits(point: GridPoint) -> bool:
    """Whether the search may go there."""
    strength, inverse = point
    inside = strength == OFF or LIMITS_OF_STRENGTH[0] <= strength <= LIMITS_OF_STRENGTH[1]
    return inside and LIMITS_OF_C[0] <= inverse <= LIMITS_OF_C[1]


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


class FoldScores(NamedTuple):
    """How well the first folds of a point predict their held-out rows."""

    scale: float
    """The factor on the logits, the best one for these rows unless it is given."""
    folds: list[float]
    """Mean log-likelihood of the held-out rows of each fold."""
    mean: float
    """That of all rows."""
    error: float
    """Of the mean, where the solutions of folds are rough."""
    rows: Tensor
    """(M,) log-likelihoods."""
    weights: Tensor
    """(M,) of the rows, with the sum 1."""


class _Start(NamedTuple):
    """Where the minimisation for a fold begins."""

    candidates: list[Tensor]
    """The one with the lowest objective is taken; zeros if there is none."""
    near: bool
    """Whether one of them is for a point with augmentation."""


@dataclass(frozen=True, kw_only=True)
class FoldSolver:
    """Fits the training rows of folds; see `minimise` for ``accuracy``, ``max_iter`` and ``polish``."""

    bound: str
    accuracy: float
    max_iter: int
    polish: bool = False
    offset: Tensor | None = None
    """(C, C) added to margins in training only."""
    n_jobs: int | None = None

    @property
    def rough(self) -> float:
        """The accuracy of first solutions."""
        return self.accuracy if self.polish else max(self.accuracy, _ROUGH)

    def solve(
        self, point: GridPoint, accuracy: float, folds: Sequence[SelectionFold], starts: Sequence[_Start]
    ) -> list[Tensor]:
        """The optimum of each fold."""
        pairs = zip(folds, starts, strict=True)
        calls = [(point, accuracy, fold.covariances, fold.total, start) for fold, start in pairs]
        jobs = min(effective_n_jobs(self.n_jobs), len(calls))
        if jobs <= 1:
            return [self.solve_fold(*call) for call in calls]
        return list(Parallel(n_jobs=jobs)(delayed(_with_one_thread)(self, *call) for call in calls))

    def solve_fold(
        self, point: GridPoint, accuracy: float, covariances: RowCovariances, total: float, start: _Start
    ) -> Tensor:
        """The optimum of one fold."""
        objective = ConvexObjective(
            covariances.rows,
            covariances,
            strength=power(point[0]),
            penalty=1 / (power(point[1]) * total),
            bound=self.bound,
            offset=self.offset,
        )
        steps = min(self.max_iter, _STEPS_OF_FOLDS)
        search: dict[str, Any] = {"max_iter": steps, "warn": False, "polish": self.polish, "near": start.near}
        first = start.candidates[0] if start.candidates else None
        if len(start.candidates) > 1:
            objective.tilt_accuracy = _START_ACCURACY
            first = min(start.candidates, key=lambda parameters: objective.evaluate(parameters, limit=-torch.inf).value)
        return minimise(objective, first, tol=torch.inf, accuracy=accuracy, **search).parameters


def _with_one_thread(
    solver: FoldSolver, point: GridPoint, accuracy: float, covariances: RowCovariances, total: float, start: _Start
) -> Tensor:
    """Solve a fold in a process of its own: several processes with several threads each are slower."""
    torch.set_num_threads(1)
    return solver.solve_fold(point, accuracy, covariances, total, start)


class Trials:
    """Points that were tried with one scaling of the features, and the solutions of their folds.

    Args:
        folds: functions that return the folds; the first call makes one.
        scale: factor on all logits, or None for the best one of each point.
        solver: of the folds.
        report: is called with a line for every result.
        before: those of another scaling.
    """

    def __init__(
        self,
        folds: Sequence[Callable[[], SelectionFold]],
        scale: float | None,
        solver: FoldSolver,
        report: Callable[[str], None] | None = None,
        before: Trials | None = None,
    ) -> None:
        self.folds, self._scale, self._solver, self._report, self._before = folds, scale, solver, report, before
        self.solutions: dict[GridPoint, list[Tensor]] = {}
        self._accurate: dict[GridPoint, int] = {}
        """How many of them, from the first on, have the accuracy of the solver."""
        self._used: dict[GridPoint, int] = {}
        """How many of them comparisons have asked for: several processes solve more, which must not decide anything."""
        self._scores: dict[tuple[GridPoint, int, int], FoldScores] = {}

    def is_better(self, point: GridPoint, other: GridPoint) -> bool:
        """Whether the score exceeds the other's by more than the minimal gain, by as few folds as decide."""
        return self.compare(point, other)[0] > MIN_GAIN

    def compare(
        self, point: GridPoint, other: GridPoint, *, rival: Trials | None = None, limit: float = MIN_GAIN
    ) -> tuple[float, float]:
        """The mean gain in log-likelihood over another point, and a bound of its error.

        Folds and accuracy are added until it is clear whether the gain is above ``limit``, or that it is small; folds
        that earlier comparisons of both points have used are always taken. The error is 0 after all folds. The other
        point may be one of the trials with another scaling, the ``rival``.
        """
        rival, count = rival or self, len(self.folds)
        used = min(self._used.get(point, 0), rival._used.get(other, 0))
        first = max(used, 1 if len(self.folds[0]().labels) >= _ONE_FOLD_ROWS else 2)
        gain = error = 0.0
        for stage in dict.fromkeys(min(max(stage, first), count) for stage in (first, 2, count)):
            for accurate in (False, True):
                second = rival.scores(other, stage, accurate=accurate)
                here = self.scores(point, stage, accurate=accurate)
                gain, standard_error = _mean_gain(here, second)
                by_rows = 0.0 if stage == count else _STANDARD_ERRORS[stage] * standard_error
                error = by_rows + max(here.error, second.error)
                if abs(gain - limit) > error or is_small(gain, error):
                    return gain, error
                if abs(gain - limit) <= by_rows:  # more accurate solutions would not decide
                    break
        return gain, error

    def known_gain(self, point: GridPoint, other: GridPoint) -> float:
        """The mean gain over another point in the folds that both have."""
        count = min(self._used[point], self._used[other])
        return _mean_gain(self.scores(point, count), self.scores(other, count))[0]

    def known_scores(self, point: GridPoint, best: GridPoint, rival: Trials) -> FoldScores:
        """Those of the folds that are solved; if not all are, the mean is estimated.

        It is then the mean of the best point, which may be one of the trials with another scaling, plus the mean gain
        over it in these folds.
        """
        found = self.scores(point, self._used[point])
        whole = rival.scores(best, len(self.folds), accurate=True)
        if len(found.folds) == len(self.folds):
            return found
        return found._replace(mean=whole.mean + _mean_gain(found, rival.scores(best, len(found.folds)))[0])

    def scores(self, point: GridPoint, count: int, *, accurate: bool = False) -> FoldScores:
        """Those of the first folds, which are solved if they are not yet, or not with the accuracy of the solver."""
        solutions = self.solve(point, count, accurate=accurate)
        self._used[point] = max(count, self._used.get(point, 0))
        solved = min(self._accurate[point], count)
        if (point, count, solved) in self._scores:
            return self._scores[point, count, solved]
        folds = [make() for make in self.folds[:count]]
        logits = [_logits(solution, fold.inputs) for solution, fold in zip(solutions, folds, strict=True)]
        weights = torch.cat([fold.weights for fold in folds]).double()
        scale = self._scale
        if scale is None:
            scale = best_scale(torch.cat(logits), torch.cat([fold.labels for fold in folds]), weights)
        each = [log_likelihoods(scale * z, fold.labels) for z, fold in zip(logits, folds, strict=True)]
        totals = [float(fold.weights.sum()) for fold in folds]
        sums = [float(fold.weights.double() @ rows) for fold, rows in zip(folds, each, strict=True)]
        means = [part / total if total else 0.0 for part, total in zip(sums, totals, strict=True)]
        weights /= weights.sum()
        rows = torch.cat(each)
        mean = float(weights @ rows)
        error = 0.0 if solved == count else _ROUGH_ERROR * abs(mean)
        found = self._scores[point, count, solved] = FoldScores(scale, means, mean, error, rows, weights)
        if self._report is not None:
            values = f"lambda_0={power(point[0]):g} C={power(point[1]):g} scale={scale:.3g}"
            part = "" if count == len(self.folds) else f" ({count} of {len(self.folds)} folds)"
            self._report(f"{values}: held-out log-likelihood {found.mean:.4f}{part}")
        return found

    def solve(self, point: GridPoint, count: int, *, accurate: bool = False) -> list[Tensor]:
        """The optimum of each of the first folds; with several processes at least two folds are solved at once."""
        solutions, solver = self.solutions.setdefault(point, []), self._solver
        accurate = accurate or solver.rough == solver.accuracy
        first = self._accurate.setdefault(point, 0)
        if not accurate:
            first = len(solutions)
        numbers = range(first, count)
        if not solutions and effective_n_jobs(solver.n_jobs) > 1:
            numbers = range(min(max(count, 2), len(self.folds)))
        if numbers:
            starts = [
                _Start([solutions[number]], near=True) if number < len(solutions) else self._start(point, number)
                for number in numbers
            ]
            accuracy = solver.accuracy if accurate else solver.rough
            found = solver.solve(point, accuracy, [self.folds[number]() for number in numbers], starts)
            solutions[first : numbers.stop] = found
            if accurate:
                self._accurate[point] = numbers.stop
        return solutions[:count]

    def held_out_logits(self, point: GridPoint) -> list[Tensor]:
        """(M, C) of each fold, without a scale."""
        solutions = self.solve(point, len(self.folds), accurate=True)
        return [_logits(found, make().inputs) for found, make in zip(solutions, self.folds, strict=True)]

    def mean_parameters(self, point: GridPoint) -> Tensor:
        """(K, A + 1) of all folds at a point, for the features as they came."""
        each = [fold().to_features(found) for fold, found in zip(self.folds, self.solutions[point], strict=True)]
        return torch.stack(each).mean(0)

    def discriminant_product(self) -> float:
        """The exponent of the best lambda C where lambda is large.

        There the optimum is discriminant analysis with the covariance (v + K / (2 lambda C N) I) of K classes, which
        takes no minimisation. For rows that are not in principal axes -1.
        """
        fold = self.folds[0]()
        rows, (inputs, labels, weights) = fold.covariances.rows, fold[1:4]
        if rows.variances is None:
            return -1.0
        means, best = class_centres(rows), (OFF, -1.0)
        for exponent in torch.arange(LIMITS_OF_C[0], LIMITS_OF_C[1] + 1).tolist():
            weight = means / (rows.variances + rows.num_classes / (2 * 10**exponent * fold.total))
            logits = inputs @ weight.t() - (weight * means).sum(1) / 2
            scale = best_scale(logits, labels, weights)
            score = float(weights.double() @ log_likelihoods(scale * logits, labels))
            best = max(best, (score, exponent))
        return best[1]

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
            near = nearest[0] > OFF
            if opposite in solved:
                candidates.append((solved[nearest] + solved[opposite]) / 2)
            else:
                candidates.append(solved[nearest])
                if behind in solved:
                    candidates.append(2 * solved[nearest] - solved[behind])
        if self._before is not None and number < len(self._before.solutions.get(point, ())):
            elsewhere = self._before.folds[number]().to_features(self._before.solutions[point][number])
            candidates.append(self.folds[number]().from_features(elsewhere))
            near = True
        return _Start(candidates, near=near)


def is_small(gain: float, error: float) -> bool:
    """Whether a gain with this error is certain not to matter."""
    return abs(gain) + error < _SMALL_GAIN


def _mean_gain(first: FoldScores, second: FoldScores) -> tuple[float, float]:
    """The weighted mean difference of rows, and its standard error."""
    gains = first.rows - second.rows
    mean = float(first.weights @ gains)
    return mean, float((first.weights.square() @ (gains - mean).square()).sqrt())


def _mirrored(point: GridPoint, centre: GridPoint) -> GridPoint:
    """The point on the other side of the centre; lambda = 0 only if both have it."""
    off = point[0] == centre[0] == OFF
    return OFF if off else 2 * centre[0] - point[0], 2 * centre[1] - point[1]


def _logits(parameters: Tensor, inputs: Tensor) -> Tensor:
    """(M, C) of rows (M, A)."""
    logits = torch.addmm(parameters[:, -1:], parameters[:, :-1], inputs.t()).t()
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits
