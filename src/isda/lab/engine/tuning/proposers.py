"""Proposers of trials: a grid that is widened and refined, and Optuna's samplers.

Proposals depend on the trials so far and the seed only, so an interrupted search resumes deterministically.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from isda._utils.seeds import mix
from isda.lab.engine.tuning.search_space import Point, Proposal, SearchedSetting, Trial, best_trial, grid_points

GRID_DIGITS = 3
"""Significant digits of a computed value, which names a folder."""
EVEN_TOLERANCE = 0.02
"""Steps that differ by less than this share count as equal."""
MIN_SPACING = 0.02
"""Values that differ by less than this share are not worth two runs."""


def is_geometric(values: Sequence[float]) -> bool:
    """Whether a grid has ratios rather than differences as steps: unless only its differences are equal.

    Example:
        >>> is_geometric([0.5, 1, 2]), is_geometric([0.1, 0.25, 0.5, 0.75, 1]), is_geometric([0, 0.1, 0.2])
        (True, True, False)
    """
    above = [value for value in values if value > 0]
    if len(above) < 2 or min(values) < 0:
        return False
    if _even([high / low for low, high in pairwise(above)]) and len(above) == len(values):
        return True
    return not _even([high - low for low, high in pairwise(values)])


def step_beyond(values: Sequence[float], edge: float, *, upper: bool, whole: bool = False) -> float | None:
    """The value one step beyond an edge, by the mean ratio or difference of a grid's values; None if there is none.

    Example:
        >>> step_beyond([0.5, 1, 2], 2, upper=True), step_beyond([0, 0.1, 0.2], 0.2, upper=True)
        (4.0, 0.3)
        >>> step_beyond([0.1, 0.25, 0.5, 0.75, 1], 0.1, upper=False)
        0.0562
    """
    if len(values) < 2:
        return None
    if is_geometric(values):
        above = [value for value in values if value > 0]
        ratio = (above[-1] / above[0]) ** (1 / (len(above) - 1))
        further = edge * ratio if upper else edge / ratio
    else:
        step = (values[-1] - values[0]) / (len(values) - 1)
        further = edge + step if upper else edge - step
    value = _rounded(further, whole)
    return value if math.isfinite(value) and value != edge else None


def midpoint(a: float, b: float, *, whole: bool = False) -> float | None:
    """The middle of two values, of their logarithms if both are positive; None if they are too close.

    Example:
        >>> midpoint(0.5, 2), midpoint(0, 0.1), midpoint(3, 4, whole=True)
        (1.0, 0.05, None)
    """
    middle = _rounded(math.sqrt(a * b) if min(a, b) > 0 else (a + b) / 2, whole)
    distance = min(abs(middle - a), abs(middle - b))
    return middle if distance > 0 and distance >= MIN_SPACING * max(abs(a), abs(b)) else None


def spread_indices(count: int, wanted: int) -> list[int]:
    """``wanted`` of ``count`` indices, evenly spaced from the first to the last.

    Example:
        >>> spread_indices(5, 3), spread_indices(5, 1), spread_indices(3, 5)
        ([0, 2, 4], [2], [0, 1, 2])
    """
    if wanted >= count:
        return list(range(count))
    if wanted == 1:
        return [count // 2]
    return [round(index * (count - 1) / (wanted - 1)) for index in range(wanted)]


def _even(steps: Sequence[float]) -> bool:
    return max(steps) - min(steps) <= EVEN_TOLERANCE * max(map(abs, steps))


def _rounded(value: float, whole: bool) -> float:
    return round(value) if whole else float(f"{value:.{GRID_DIGITS}g}")


STARTUP_TRIALS = 10
"""Random trials before those of TPE, as in Optuna, but at most a third of all."""
SAMPLED_DIGITS = 4
"""Significant digits of a sampled value."""


class Proposer(ABC):
    """Proposes trials of a method.

    Args:
        searched: the settings of the method, at least one.
        lower_is_better: whether smaller figures are better.
        budget: number of trials; None for as many as the search takes.
        seed: of random choices.
    """

    def __init__(
        self, searched: Sequence[SearchedSetting], lower_is_better: bool, budget: int | None, seed: int
    ) -> None:
        self.searched, self.lower_is_better, self.budget, self.seed = searched, lower_is_better, budget, seed

    @abstractmethod
    def first(self) -> list[Point]:
        """Points that must be valid for the search to start."""

    @abstractmethod
    def next(self, trials: Sequence[Trial], level: int = 0) -> list[Proposal]:
        """Trials that can run in parallel now; none at the end, after at least ``level`` trials if possible."""

    def notes(self, trials: Sequence[Trial]) -> list[str]:
        """Notes about a best trial at the edge of the tried values."""
        return []


class GridProposer(Proposer):
    """Every combination of values, then beyond the edges while an edge is best, then between values near the best.

    Args:
        searched: see `Proposer`.
        lower_is_better: see `Proposer`.
        budget: see `Proposer`; a larger grid is thinned.
        seed: see `Proposer`.
        widen: how many steps beyond its grid a setting may take.
        point_problem: why a point is invalid; empty if it is valid.
    """

    def __init__(
        self,
        searched: Sequence[SearchedSetting],
        lower_is_better: bool,
        budget: int | None,
        seed: int,
        widen: int,
        point_problem: Callable[[Point], str],
    ) -> None:
        super().__init__(searched, lower_is_better, budget, seed)
        self.widen, self.point_problem = widen, point_problem

    def first(self) -> list[Point]:
        """The grid; with a smaller budget, evenly spaced values of a single setting, or random points of several."""
        points = grid_points(self.searched)
        count = len(points) if self.budget is None else min(self.budget, len(points))
        if len(self.searched) == 1:
            return [points[index] for index in spread_indices(len(points), count)]
        return [points[index] for index in sorted(random.Random(mix(self.seed)).sample(range(len(points)), count))]

    def next(self, trials: Sequence[Trial], level: int = 0) -> list[Proposal]:
        """The whole grid at once, then one point at a time."""
        tried = [trial.point for trial in trials]
        missing = [Proposal(point, "grid") for point in self.first() if point not in tried]
        if missing:
            return missing
        best = best_trial(trials, self.lower_is_better)
        if best is None or (self.budget is not None and len(trials) >= self.budget):
            return []
        for setting in self.searched:
            further, _ = self._beyond(setting, best, trials)
            if further is not None:
                return [Proposal(best.point | {setting.name: further}, f"widened {setting.name}")]
        if len(trials) < (level if self.budget is None else self.budget):
            return self._refined(best, trials)
        return []

    def notes(self, trials: Sequence[Trial]) -> list[str]:
        """Which values of the best trial are at an edge, and why the search went no further."""
        best = best_trial(trials, self.lower_is_better)
        if best is None:
            return []
        return [note for setting in self.searched if (note := self._beyond(setting, best, trials)[1])]

    def _beyond(self, setting: SearchedSetting, best: Trial, trials: Sequence[Trial]) -> tuple[Any, str]:
        """The next value beyond the edge, if the best trial is at one, and a note about the edge."""
        name, value = setting.name, best.point[setting.name]
        values = _tried_values(setting, trials)
        if not setting.numeric or len(values) < 2 or value not in (values[0], values[-1]):
            return None, ""
        upper = value == values[-1]
        note = f"{name}={value:g} is the {'largest' if upper else 'smallest'} value tried"
        if sum(trial.why == f"widened {name}" for trial in trials) >= self.widen:
            return None, note
        further = step_beyond(setting.values, value, upper=upper, whole=setting.whole)
        if further is None:
            return None, f"{note}, and there is none beyond"
        if problem := self.point_problem(best.point | {name: further}):
            return None, f"{note}, and the limit: {problem}"
        if self.budget is not None and len(trials) >= self.budget:
            return None, note
        return further, note

    def _refined(self, best: Trial, trials: Sequence[Trial]) -> list[Proposal]:
        """The midpoint of the best trial and its best neighbour, if there is one."""
        candidates = list[tuple[float, int, Proposal]]()
        sign = 1 if self.lower_is_better else -1
        for setting in self.searched:
            if not setting.numeric:
                continue
            values, value = _tried_values(setting, trials), best.point[setting.name]
            index = values.index(value)
            for neighbour in values[max(0, index - 1) : index] + values[index + 1 : index + 2]:
                middle = midpoint(value, neighbour, whole=setting.whole)
                point = best.point | {setting.name: middle}
                if middle is None or any(trial.point == point for trial in trials) or self.point_problem(point):
                    continue
                beside = [trial for trial in trials if trial.point[setting.name] == neighbour]
                best_beside = best_trial(beside, self.lower_is_better)
                figure = math.inf if best_beside is None or best_beside.value is None else sign * best_beside.value
                candidates.append((figure, len(candidates), Proposal(point, f"refined {setting.name}")))
        return [min(candidates, key=lambda candidate: candidate[:2])[2]] if candidates else []


def _tried_values(setting: SearchedSetting, trials: Sequence[Trial]) -> list[Any]:
    """The distinct values of a setting in all trials, in order."""
    return sorted({trial.point[setting.name] for trial in trials}) if setting.numeric else list(setting.values)


class OptunaProposer(Proposer):
    """Optuna's samplers on ranges and values; the seed of trial t is a function of the search's seed and t.

    Args:
        searched: see `Proposer`.
        lower_is_better: see `Proposer`.
        budget: see `Proposer`.
        seed: see `Proposer`.
        learning: use tree-structured Parzen estimators (Bergstra et al., 2011) after the first, random trials.
    """

    budget: int

    def __init__(
        self, searched: Sequence[SearchedSetting], lower_is_better: bool, budget: int, seed: int, learning: bool
    ) -> None:
        super().__init__(searched, lower_is_better, budget, seed)
        self.random_trials = min(STARTUP_TRIALS, -(-budget // 3)) if learning else budget

    def first(self) -> list[Point]:
        """The ends of every range, and the first values."""
        ends = [
            {setting.name: setting.values[0] if setting.values else getattr(setting, end) for setting in self.searched}
            for end in ("low", "high")
        ]
        return ends[:1] if ends[0] == ends[1] else ends

    def next(self, trials: Sequence[Trial], level: int = 0) -> list[Proposal]:
        """All random trials at once, then one at a time: proposals must not depend on how many run in parallel."""
        done = len(trials)
        last = self.random_trials if done < self.random_trials else min(done + 1, self.budget)
        return [Proposal(self._drawn(number, trials), "sampled") for number in range(done, last)]

    def _drawn(self, number: int, trials: Sequence[Trial]) -> Point:
        from optuna import create_study
        from optuna.samplers import BaseSampler, RandomSampler, TPESampler
        from optuna.trial import create_trial

        from isda.lab.engine.tuning.records import optuna_distribution, silence_optuna

        silence_optuna()
        seed = mix(self.seed, number) % 2**32
        learning = number >= self.random_trials
        sampler: BaseSampler = TPESampler(seed=seed, n_startup_trials=0) if learning else RandomSampler(seed=seed)
        study = create_study(sampler=sampler, direction="minimize" if self.lower_is_better else "maximize")
        space = {setting.name: optuna_distribution(setting) for setting in self.searched}
        worst = float("inf") if self.lower_is_better else -float("inf")
        for trial in trials if learning else ():
            value = worst if trial.value is None else trial.value
            study.add_trial(create_trial(params=trial.point, distributions=space, value=value))
        drawn = study.ask(space).params
        return {setting.name: _round_sample(drawn[setting.name], setting) for setting in self.searched}


def _round_sample(value: Any, setting: SearchedSetting) -> Any:
    """A sampled number, which names a folder, rounded to a few digits within its range."""
    if not isinstance(value, float) or setting.low is None or setting.high is None:
        return value
    return min(max(float(f"{value:.{SAMPLED_DIGITS}g}"), setting.low), setting.high)
