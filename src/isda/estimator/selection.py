"""Selection of lambda_0, C, the scaling of features and a scale of the logits by cross-validated log-likelihood.

The search moves on a grid of powers of ten until no neighbour is better. One search direction raises lambda and the
penalty 1/C together: the directions of the weights hardly change, and the scale corrects their norm. It begins at
lambda = 1 with the best lambda C of discriminant analysis, which needs no minimisation. The search without
augmentation begins at the best C with it, and ends where it cannot become as good. Half steps follow, to the side where
a parabola through the neighbours is highest. Each point has its own best scale. Gains below a threshold are ignored.

Of several scalings of the features the first is searched like this. A further one starts at the optimum of the best
one before. If it is as good there, or still clearly worse after steps along C, its search ends.

See `isda.estimator.trials` for how many folds of a point are solved. The chosen point has all. Others get its score
plus the mean difference in the folds that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from isda.estimator.data import Standardize
from isda.estimator.trials import (
    LIMITS_OF_C,
    MIN_GAIN,
    OFF,
    FoldSolver,
    GridPoint,
    SelectionFold,
    Trials,
    is_small,
    power,
    within_limits,
)

_FIRST_C = -1.0
"""Exponent of the first C, where lambda is given."""
_ALONG_STRENGTH, _ALONG_C, _ALONG_BOTH = (1.0, 0.0), (0.0, 1.0), (1.0, -1.0)
_REACH = 0.05
"""What further steps may gain, as a part of the log-likelihood."""
_NEAR_CENTRE = 0.1
"""In decades: how far the highest point of a parabola may be to leave its side open."""
_TREND = 2.0
"""A step along C gains at most so many times what the one before has."""

Folds = Sequence[Callable[[], SelectionFold]]


class Selection(NamedTuple):
    """The chosen values, and all that were tried."""

    standardize: Standardize
    strength: float
    C: float
    scale: float
    results: dict[str, Any]
    start: NDArray[Any]
    """(K, A + 1) mean parameters of the folds at these values, for the features as they came."""


class _Optimum(NamedTuple):
    """The result of the search with one scaling."""

    standardize: Standardize
    trials: Trials
    point: GridPoint
    plain: GridPoint
    """The optimum along C, without augmentation or with the given one."""
    augmented: GridPoint | None
    """The optimum with augmentation, if its strength is chosen."""


def select(
    folds: Mapping[Standardize, Callable[[], Folds]],
    *,
    strength: float | None,
    C: float | None,
    scale: float | None,
    solver: FoldSolver,
    report: Callable[[str], None] | None = None,
) -> Selection:
    """Choose a scaling, and those of lambda, C and the scale that are None, by the log-likelihood of held-out rows.

    ``folds`` makes the folds of each scaling; ``report`` is called with a line for every result.
    """
    tried: dict[Standardize, Trials] = {}
    best: _Optimum | None = None
    for standardize, make_folds in folds.items():
        name = f"standardize={standardize} " if len(folds) > 1 else ""
        line = None if report is None else partial(_report, report, name)
        trials = tried[standardize] = Trials(make_folds(), scale, solver, line, best and best.trials)
        found = _search(standardize, trials, strength, C, best)
        if best is None or (found and trials.compare(found.point, best.point, rival=best.trials)[0] > MIN_GAIN):
            best = found
    if best is None:
        raise ValueError("folds must hold at least one scaling, got none")
    scores = best.trials.scores(best.point, len(best.trials.folds), accurate=True)
    return Selection(
        best.standardize,
        strength if strength is not None else power(best.point[0]),
        C if C is not None else power(best.point[1]),
        scores.scale,
        _results(tried, best),
        best.trials.mean_parameters(best.point).numpy(),
    )


def held_out_logits(folds: Folds, *, strength: float, C: float, solver: FoldSolver) -> list[Tensor]:
    """(M, C) logits of the held-out rows of each fold, without a scale."""
    return Trials(folds, None, solver).held_out_logits(_grid_point(strength, C))


def _report(report: Callable[[str], None], name: str, line: str) -> None:
    report(name + line)


def _search(
    standardize: Standardize, trials: Trials, strength: float | None, C: float | None, rival: _Optimum | None
) -> _Optimum | None:
    """Search the grid; None if another scaling, the rival, stays ahead of this one."""
    along_C = [_ALONG_C] if C is None else []
    if rival is not None and (
        _is_equal(rival, trials) or _stays_ahead(rival, trials, _climb(trials, rival.point, along_C))
    ):
        return None
    if strength is not None:
        plain = rival.plain if rival else _grid_point(strength, 10**_FIRST_C if C is None else C)
        plain = _refine(trials, _climb(trials, plain, along_C), along_C)
        return _Optimum(standardize, trials, plain, plain, None)
    moves = [_ALONG_STRENGTH, *along_C, *([_ALONG_BOTH] if C is None else [])]
    if rival is not None and rival.augmented is not None:
        plain, augmented = rival.plain, _climb(trials, rival.augmented, moves)
    else:
        exponent = trials.discriminant_product() if C is None else float(np.log10(C))
        augmented = _climb(trials, (0.0, exponent), moves)
        plain = OFF, augmented[1]
    plain = _climb(trials, plain, along_C, ahead=augmented)
    augmented = _refine(trials, augmented, moves)
    gain, error = trials.compare(augmented, plain)
    if gain - error < _reach(trials, plain):
        plain = _refine(trials, plain, along_C)
    point = augmented if trials.is_better(augmented, plain) else plain
    return _Optimum(standardize, trials, point, plain, augmented)


def _reach(trials: Trials, point: GridPoint) -> float:
    """What further steps may gain, in nats per row."""
    return max(MIN_GAIN, _REACH * abs(trials.scores(point, 1).mean))


def _is_equal(rival: _Optimum, trials: Trials) -> bool:
    """Whether the rival's optimum has about the same score with this scaling, or a little less."""
    gain, error = trials.compare(rival.point, rival.point, rival=rival.trials)
    return gain <= MIN_GAIN and is_small(gain, error)


def _stays_ahead(rival: _Optimum, trials: Trials, point: GridPoint) -> bool:
    """Whether the point is worse than the rival by more than further steps may gain."""
    reach = _reach(trials, point)
    return trials.compare(point, rival.point, rival=rival.trials, limit=-reach)[0] <= -reach


def _climb(
    trials: Trials, point: GridPoint, moves: Sequence[GridPoint], *, ahead: GridPoint | None = None
) -> GridPoint:
    """Coordinate ascent: move along one direction after the other until no neighbour at a decade's distance is better.

    It ends earlier where the point ``ahead`` is out of reach: where all steps to the limit of C would not lead there.
    """
    settled, visited = False, {point}
    while not settled:
        settled = True
        for move in moves:
            for sign in (1.0, -1.0):
                while True:
                    neighbour = (point[0] + sign * move[0], point[1] + sign * move[1])
                    if neighbour in visited or not within_limits(neighbour):
                        break
                    gain, _ = trials.compare(neighbour, point)
                    if gain <= MIN_GAIN:
                        break
                    point, settled = neighbour, False
                    visited.add(point)
                    if ahead is not None:
                        possible = _TREND * gain * abs(LIMITS_OF_C[sign > 0] - point[1])
                        if trials.known_gain(ahead, point) > possible:
                            return point
    return point


def _refine(trials: Trials, centre: GridPoint, moves: Sequence[GridPoint]) -> GridPoint:
    """Half steps from an optimum among decades.

    A parabola runs through both neighbours of the centre along each direction. Steps go to the side where it is
    highest, or to both if that is near the centre.
    """
    point, steps = centre, []
    for move in moves:
        pair = [(centre[0] + sign * move[0], centre[1] + sign * move[1]) for sign in (1.0, -1.0)]
        if all(neighbour in trials.solutions for neighbour in pair):
            up, down = (trials.known_gain(neighbour, centre) for neighbour in pair)
            highest = (down - up) / (2 * (up + down)) if up + down < 0 else 0.0
            halves = [half for half in (0.5, -0.5) if 2 * half * highest > -_NEAR_CENTRE]
            steps += [(half * move[0], half * move[1]) for half in halves]
    settled = False
    while not settled:
        settled = True
        for step in steps:
            neighbour = (point[0] + step[0], point[1] + step[1])
            if within_limits(neighbour) and trials.is_better(neighbour, point):
                point, settled = neighbour, False
    return point


def _grid_point(strength: float, C: float) -> GridPoint:
    return float(np.log10(strength)) if strength else OFF, float(np.log10(C))


def _results(tried: Mapping[Standardize, Trials], best: _Optimum) -> dict[str, Any]:
    """Columns like those of scikit-learn's cv_results_; the scaling is among them if it was chosen."""
    keys = [(standardize, point) for standardize, trials in tried.items() for point in trials.solutions]
    scores = [tried[standardize].known_scores(point, best.point, best.trials) for standardize, point in keys]
    folds = len(best.trials.folds)
    table = np.array([found.folds + [np.nan] * (folds - len(found.folds)) for found in scores])
    means = np.array([found.mean for found in scores])
    params: list[dict[str, Any]] = [{"lambda_0": power(point[0]), "C": power(point[1])} for _, point in keys]
    if len(tried) > 1:
        for row, (standardize, _) in zip(params, keys, strict=True):
            row["standardize"] = standardize
    columns: dict[str, Any] = {
        "param_lambda_0": np.array([row["lambda_0"] for row in params]),
        "param_C": np.array([row["C"] for row in params]),
        "param_standardize": np.array([standardize for standardize, _ in keys], dtype=object),
        "params": params,
        "scale": np.array([found.scale for found in scores]),
        "mean_test_score": means,
        "std_test_score": np.nanstd(table, axis=1),
        "n_folds": np.array([len(found.folds) for found in scores]),
        "rank_test_score": np.array([1 + int((means > mean).sum()) for mean in means]),
    }
    for number in range(table.shape[1]):
        columns[f"split{number}_test_score"] = table[:, number]
    columns["best_index"] = keys.index((best.standardize, best.point))
    return columns
