"""One method of a search: its runs at a point, judged by held-out data, and who proposes the points."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from isda.choices import check_choice
from isda.engine.comparing import Planner, run_folder_name
from isda.engine.folder.config import RunConfig
from isda.engine.folder.figures import Figure
from isda.engine.folder.reading import SEARCH_FOLDER
from isda.engine.planned import Planned
from isda.engine.task import HeldOut
from isda.engine.tuning.proposing import Grid, Proposer, Sampled
from isda.engine.tuning.record import MOST_TRIALS
from isda.engine.tuning.searched import Point, Searched, applied

__all__ = ["SAMPLERS", "Candidate", "How"]

SAMPLERS = ("grid", "tpe", "random")
TRIALS = 20
"""Of samplers that have no end of their own, where the user does not say."""
TEST = "test"
"""What no run of a search may be judged by."""


@dataclass(frozen=True, kw_only=True)
class How:
    """How to search."""

    sampler: str = "grid"
    """grid, tpe or random."""
    trials: int | None = None
    """Of each method; by default as many as a grid takes, or 20."""
    widen: int = 3
    """How many steps a setting may be taken beyond its grid."""
    seeds: tuple[int, ...] = (100,)
    """Of the runs of each trial."""
    by: str | None = None
    """The figure to choose by; the task's first by default."""
    seed: int = 0
    """Of what is random in the search itself."""

    def __post_init__(self) -> None:
        check_choice("sampler", self.sampler, SAMPLERS)
        if self.trials is not None and not 1 <= self.trials <= MOST_TRIALS:
            raise ValueError(f"trials must be from 1 to {MOST_TRIALS}, got {self.trials}")
        if self.widen < 0:
            raise ValueError(f"widen must be at least 0, got {self.widen}")
        if not self.seeds:
            raise ValueError("a trial must have at least 1 seed, got none")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method of which settings are to be chosen; ``searched`` is empty where there are none."""

    method: str
    held_out: HeldOut
    searched: tuple[Searched, ...]
    planner: Planner
    how: How
    config: RunConfig
    """Of a run of the search, without any choice."""

    @property
    def figure(self) -> Figure:
        """What is chosen by."""
        known = {figure.name: figure for figure in self.config.figures}
        return known[check_choice("by", self.how.by or self.config.figures[0].name, known)]

    @property
    def study(self) -> str:
        """A name that only this search has."""
        told = [self.config.identity, [asdict(one) for one in self.searched], asdict(self.how), self.figure.name]
        return f"{self.method} {hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]}"

    def runs(self, point: Point, folder: Path) -> list[Planned]:
        """The runs of a trial, one for each seed, below the folder of the search."""
        settings, name = applied(self.held_out.choosing, self.searched, point)
        below = folder / SEARCH_FOLDER
        return [
            self.planner.plan(replace(settings, seed=seed), below / run_folder_name(name, seed))
            for seed in self.how.seeds
        ]

    def final_run(self, point: Point, seed: int, folder: Path) -> Planned:
        """A run on all data at a point, in the folder of the final runs."""
        settings, name = applied(self.held_out.final, self.searched, point)
        return self.planner.plan(replace(settings, seed=seed), folder / run_folder_name(name, seed))

    def name(self, point: Point) -> str:
        """The method with a point behind its colon."""
        return applied(self.held_out.final, self.searched, point)[1]

    def proposer(self) -> Proposer:
        """What says which points to try."""
        how, lower = self.how, self.figure.lower_is_better
        if how.sampler == "grid":
            return Grid(self.searched, lower, how.trials, how.seed, how.widen, self.problem_of)
        return Sampled(self.searched, lower, how.trials or TRIALS, how.seed, learning=how.sampler == "tpe")

    def problem_of(self, point: Point) -> str:
        """What is wrong with a point; empty if nothing is."""
        try:
            self._resolved(point)
        except ValueError as error:
            return str(error)
        return ""

    def check(self) -> None:
        """Raise a ValueError unless the first points are possible, different, and judged by held-out data."""
        if self.config.evaluated_on == TEST:
            raise ValueError(f"settings must not be chosen by the test set, as those of method {self.method} would be")
        ranges = [one.name for one in self.searched if not one.values]
        if ranges and self.how.sampler == "grid":
            raise ValueError(f"a grid needs values, got a range of {ranges[0]}; for ranges there is --sampler tpe")
        size = math.prod(len(one.values) for one in self.searched)
        if size > MOST_TRIALS:
            raise ValueError(f"a grid must have at most {MOST_TRIALS} points, got {size}; there is --sampler random")
        seen: dict[str, Point] = {}
        for point in self.proposer().first() if self.searched else ():
            other = seen.setdefault(self._resolved(point).identity, point)
            if other is not point:
                raise ValueError(f"{self.name(other)} and {self.name(point)} are the same run: nothing to choose")

    def _resolved(self, point: Point) -> RunConfig:
        settings, _ = applied(self.held_out.choosing, self.searched, point)
        return self.planner.resolve(replace(settings, seed=self.how.seeds[0]))
