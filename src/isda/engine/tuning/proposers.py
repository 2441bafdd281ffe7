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
from isda.engine.tuning.search_space import Point, Proposal, SearchedSetting, Trial, best_trial, grid_points

GRID_DIGITS = 3
"""Significant ones of a value that is made: it is the name of a folder."""
EVEN_TOLERANCE = 0.02
"""Steps that differ by less than this share are even."""
MIN_SPACING = 0.02
"""Values that differ by less than this share are not worth two runs."""


def is_geometric(values: Sequence[float]) -> bool:
    """Whether a grid goes by ratios rather than by differences: unless only its differences are even.

    Example:
        >>> by_ratio([0.5, 1, 2]), by_ratio([0.1, 0.25, 0.5, 0.75, 1]), by_ratio([0, 0.1, 0.2])
        (True, True, False)
    """
    above = [value for value in values if value > 0]
    if len(above) < 2 or min(values) < 0:
        return False
    if _even([high / low for low, high in pairwise(above)]) and len(above) == len(values):
        return True
    return not _even([high - low for low, high in pairwise(values)])


def step_beyond(values: Sequence[float], edge: float, *, upper: bool, whole: bool = False) -> float | None:
    """One step beyond an edge, by the mean ratio or the mean difference of a grid's values; None if there is none.

    Example:
        >>> beyond([0.5, 1, 2], 2, upper=True), beyond([0, 0.1, 0.2], 0.2, upper=True)
        (4.0, 0.3)
        >>> beyond([0.1, 0.25, 0.5, 0.75, 1], 0.1, upper=False)
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
    found = _rounded(further, whole)
    return found if math.isfinite(found) and found != edge else None


def midpoint(one: float, two: float, *, whole: bool = False) -> float | None:
    """The middle of two values, of their logarithms where both are positive; None if they are too close.

    Example:
        >>> between(0.5, 2), between(0, 0.1), between(3, 4, whole=True)
        (1.0, 0.05, None)
    """
    middle = math.sqrt(one * two) if min(one, two) > 0 else (one + two) / 2
    found = _rounded(middle, whole)
    scale = max(abs(one), abs(two))
    near = min(abs(found - one), abs(found - two))
    return found if near > 0 and near >= MIN_SPACING * scale else None


def spread_indices(count: int, wanted: int) -> list[int]:
    """Positions of ``wanted`` of ``count`` values in order, evenly spread, both ends among them.

    Example:
        >>> thinned(5, 3), thinned(5, 1), thinned(3, 5)
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
"""Random trials before those that learn from earlier ones, as in Optuna, but at most a third of all."""
SAMPLED_DIGITS = 4
"""Significant ones of a sampled value."""


class Proposer(ABC):
    """Proposes what a method is tried with.

    Args:
        searched: the settings of the method, at least one.
        lower_is_better: whether a small figure is a good one.
        budget: how many trials; None for as many as the search takes by itself.
        seed: of all that is random.
    """

    def __init__(
        self, searched: Sequence[SearchedSetting], lower_is_better: bool, budget: int | None, seed: int
    ) -> None:
        self.searched, self.lower_is_better, self.budget, self.seed = searched, lower_is_better, budget, seed

    @abstractmethod
    def first(self) -> list[Point]:
        """Points that must be possible, or the search is not begun."""

    @abstractmethod
    def next(self, trials: Sequence[Trial], level: int = 0) -> list[Proposal]:
        """What can be tried now, side by side; nothing at the end. Methods go on until they have ``level`` trials."""

    def notes(self, trials: Sequence[Trial]) -> list[str]:
        """What a reader should know of where the best trial lies; nothing if it is inside of what was tried."""
        return []


class GridProposer(Proposer):
    """Every combination of values, then beyond the edges while an edge wins, then between values near the best.

    Args:
        searched: see `Proposer`.
        lower_is_better: see `Proposer`.
        budget: see `Proposer`; of a larger grid as many points are taken.
        seed: see `Proposer`.
        widen: how many steps a setting may be taken beyond its grid.
        problem_of: what is wrong with a point; empty if nothing is.
    """

    def __init__(
        self,
        searched: Sequence[SearchedSetting],
        lower_is_better: bool,
        budget: int | None,
        seed: int,
        widen: int,
        problem_of: Callable[[Point], str],
    ) -> None:
        super().__init__(searched, lower_is_better, budget, seed)
        self.widen, self.problem_of = widen, problem_of

    def first(self) -> list[Point]:
        """The grid; where the budget is smaller, an even choice from one setting's values or a random one of many's."""
        points = grid_points(self.searched)
        wanted = len(points) if self.budget is None else min(self.budget, len(points))
        if len(self.searched) == 1:
            return [points[index] for index in spread_indices(len(points), wanted)]
        chosen = random.Random(mix(self.seed)).sample(range(len(points)), wanted)
        return [points[index] for index in sorted(chosen)]

    def next(self, trials: Sequence[Trial], level: int = 0) -> list[Proposal]:
        """The whole grid at once, then one point at a time."""
        tried = [trial.point for trial in trials]
        missing = [Proposal(point, "grid") for point in self.first() if point not in tried]
        if missing:
            return missing
        chosen = best_trial(trials, self.lower_is_better)
        if chosen is None or (self.budget is not None and len(trials) >= self.budget):
            return []
        for one in self.searched:
            further, _ = self._beyond(one, chosen, trials)
            if further is not None:
                return [Proposal(chosen.point | {one.name: further}, f"widened {one.name}")]
        if len(trials) < (level if self.budget is None else self.budget):
            refined = self._refined(chosen, trials)
            return [] if refined is None else [refined]
        return []

    def notes(self, trials: Sequence[Trial]) -> list[str]:
        """Where the best trial is at an edge of what was tried, and why the search went no further."""
        chosen = best_trial(trials, self.lower_is_better)
        told = [] if chosen is None else [self._beyond(one, chosen, trials)[1] for one in self.searched]
        return [note for note in told if note]

    def _beyond(self, one: SearchedSetting, chosen: Trial, trials: Sequence[Trial]) -> tuple[Any, str]:
        """The next value of a setting beyond the edge at which the best trial is, or why there is none."""
        values = _tried_values(one, trials)
        value = chosen.point[one.name]
        if not one.numeric or len(values) < 2 or value not in (values[0], values[-1]):
            return None, ""
        upper = value == values[-1]
        said = f"{one.name}={value:g} is the {'largest' if upper else 'smallest'} value tried"
        if sum(trial.why == f"widened {one.name}" for trial in trials) >= self.widen:
            return None, said
        further = step_beyond(one.values, value, upper=upper, whole=one.whole)
        if further is None:
            return None, f"{said}, and there is none beyond"
        if problem := self.problem_of(chosen.point | {one.name: further}):
            return None, f"{said}, and the limit: {problem}"
        if self.budget is not None and len(trials) >= self.budget:
            return None, said
        return further, said

    def _refined(self, chosen: Trial, trials: Sequence[Trial]) -> Proposal | None:
        """Half-way from the best trial to a neighbour, the better neighbours first."""
        candidates = list[tuple[float, int, Proposal]]()
        sign = 1 if self.lower_is_better else -1
        for one in self.searched:
            if not one.numeric:
                continue
            values, value = _tried_values(one, trials), chosen.point[one.name]
            place = values.index(value)
            for neighbour in values[max(0, place - 1) : place] + values[place + 1 : place + 2]:
                middle = midpoint(value, neighbour, whole=one.whole)
                point = chosen.point | {one.name: middle}
                if middle is None or any(trial.point == point for trial in trials) or self.problem_of(point):
                    continue
                beside = [trial for trial in trials if trial.point[one.name] == neighbour]
                judged = best_trial(beside, self.lower_is_better)
                figure = float("inf") if judged is None or judged.value is None else sign * judged.value
                candidates.append((figure, len(candidates), Proposal(point, f"refined {one.name}")))
        return min(candidates, key=lambda found: found[:2])[2] if candidates else None


def _tried_values(one: SearchedSetting, trials: Sequence[Trial]) -> list[Any]:
    """The values of a setting in all trials, each once, in order."""
    return sorted({trial.point[one.name] for trial in trials}) if one.numeric else list(one.values)


class OptunaProposer(Proposer):
    """Optuna's samplers on ranges and values; trial t is drawn with a seed that follows from the search's and t.

    Args:
        searched: see `Proposer`.
        lower_is_better: see `Proposer`.
        budget: see `Proposer`.
        seed: see `Proposer`.
        learning: tree-structured Parzen estimators (Bergstra et al., 2011) after the first trials, else random ones.
    """

    budget: int

    def __init__(
        self, searched: Sequence[SearchedSetting], lower_is_better: bool, budget: int, seed: int, learning: bool
    ) -> None:
        super().__init__(searched, lower_is_better, budget, seed)
        self.random_ones = min(STARTUP_TRIALS, -(-budget // 3)) if learning else budget

    def first(self) -> list[Point]:
        """The ends of every range, and the first values."""
        ends = [
            {one.name: (one.values[0] if one.values else end) for one, end in zip(self.searched, row, strict=True)}
            for row in ([one.low for one in self.searched], [one.high for one in self.searched])
        ]
        return ends[:1] if ends[0] == ends[1] else ends

    def next(self, trials: Sequence[Trial], level: int = 0) -> list[Proposal]:
        """All random ones at once, then one at a time: what is learnt must not depend on how many run together."""
        done = len(trials)
        last = self.random_ones if done < self.random_ones else min(done + 1, self.budget)
        return [Proposal(self._drawn(number, trials), "sampled") for number in range(done, last)]

    def _drawn(self, number: int, trials: Sequence[Trial]) -> Point:
        from optuna import create_study
        from optuna.samplers import BaseSampler, RandomSampler, TPESampler
        from optuna.trial import create_trial

        from isda.engine.tuning.records import optuna_distribution, silence_optuna

        silence_optuna()
        seed = mix(self.seed, number) % 2**32
        learning = number >= self.random_ones
        sampler: BaseSampler = TPESampler(seed=seed, n_startup_trials=0) if learning else RandomSampler(seed=seed)
        study = create_study(sampler=sampler, direction="minimize" if self.lower_is_better else "maximize")
        space = {one.name: optuna_distribution(one) for one in self.searched}
        worst = float("inf") if self.lower_is_better else -float("inf")
        for trial in trials if learning else ():
            value = worst if trial.value is None else trial.value
            study.add_trial(create_trial(params=trial.point, distributions=space, value=value))
        drawn = study.ask(space).params
        return {one.name: _round_sample(drawn[one.name], one) for one in self.searched}


def _round_sample(value: Any, one: SearchedSetting) -> Any:
    """A drawn number in few digits, within its range: it is the name of a folder."""
    if not isinstance(value, float) or one.low is None or one.high is None:
        return value
    return min(max(float(f"{value:.{SAMPLED_DIGITS}g}"), one.low), one.high)
