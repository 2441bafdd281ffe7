"""A search as requested: validated candidates, the runs of their trials, and the final runs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from isda._utils.choices import check_choice
from isda.engine.comparison import Planner, run_folder_name
from isda.engine.config import Figure, RunConfig
from isda.engine.executors import PlannedRun
from isda.engine.options import split_method
from isda.engine.run_records import SEARCH_FOLDER
from isda.engine.settings import RunSettings
from isda.engine.task import HeldOut
from isda.engine.tuning.proposers import GridProposer, OptunaProposer, Proposer
from isda.engine.tuning.records import MAX_TRIALS, MethodSearchRecord
from isda.engine.tuning.search_space import Point, SearchedSetting, apply_point, parse_searches

SAMPLERS = ("grid", "tpe", "random")
DEFAULT_TRIALS = 20
"""Of samplers that have no end of their own, where the user does not say."""
TEST_PART = "test"
"""What no run of a search may be judged by."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
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
        if self.trials is not None and not 1 <= self.trials <= MAX_TRIALS:
            raise ValueError(f"trials must be from 1 to {MAX_TRIALS}, got {self.trials}")
        if self.widen < 0:
            raise ValueError(f"widen must be at least 0, got {self.widen}")
        if not self.seeds:
            raise ValueError("a trial must have at least 1 seed, got none")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method of which settings are to be chosen; ``searched`` is empty where there are none."""

    method: str
    held_out: HeldOut
    searched: tuple[SearchedSetting, ...]
    planner: Planner
    how: SearchOptions
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

    def runs(self, point: Point, folder: Path) -> list[PlannedRun]:
        """The runs of a trial, one for each seed, below the folder of the search."""
        settings, name = apply_point(self.held_out.choosing, self.searched, point)
        below = folder / SEARCH_FOLDER
        return [
            self.planner.plan(replace(settings, seed=seed), below / run_folder_name(name, seed))
            for seed in self.how.seeds
        ]

    def final_run(self, point: Point, seed: int, folder: Path) -> PlannedRun:
        """A run on all data at a point, in the folder of the final runs."""
        settings, name = apply_point(self.held_out.final, self.searched, point)
        return self.planner.plan(replace(settings, seed=seed), folder / run_folder_name(name, seed))

    def name(self, point: Point) -> str:
        """The method with a point behind its colon."""
        return apply_point(self.held_out.final, self.searched, point)[1]

    def proposer(self) -> Proposer:
        """What says which points to try."""
        how, lower = self.how, self.figure.lower_is_better
        if how.sampler == "grid":
            return GridProposer(self.searched, lower, how.trials, how.seed, how.widen, self.problem_of)
        return OptunaProposer(
            self.searched, lower, how.trials or DEFAULT_TRIALS, how.seed, learning=how.sampler == "tpe"
        )

    def problem_of(self, point: Point) -> str:
        """What is wrong with a point; empty if nothing is."""
        try:
            self._resolved(point)
        except ValueError as error:
            return str(error)
        return ""

    def check(self) -> None:
        """Raise a ValueError unless the first points are possible, different, and judged by held-out data."""
        if self.config.evaluated_on == TEST_PART:
            raise ValueError(f"settings must not be chosen by the test set, as those of method {self.method} would be")
        ranges = [one.name for one in self.searched if not one.values]
        if ranges and self.how.sampler == "grid":
            raise ValueError(f"a grid needs values, got a range of {ranges[0]}; for ranges there is --sampler tpe")
        size = math.prod(len(one.values) for one in self.searched)
        if size > MAX_TRIALS:
            raise ValueError(f"a grid must have at most {MAX_TRIALS} points, got {size}; there is --sampler random")
        seen: dict[str, Point] = {}
        for point in self.proposer().first() if self.searched else ():
            other = seen.setdefault(self._resolved(point).identity, point)
            if other is not point:
                raise ValueError(f"{self.name(other)} and {self.name(point)} are the same run: nothing to choose")

    def _resolved(self, point: Point) -> RunConfig:
        settings, _ = apply_point(self.held_out.choosing, self.searched, point)
        return self.planner.resolve(replace(settings, seed=self.how.seeds[0]))


def make_candidates(
    settings: RunSettings, methods: Sequence[str], search: Sequence[str], how: SearchOptions, planner: Planner
) -> list[Candidate]:
    """What is searched of each method, all of it checked.

    Args:
        settings: what all runs share; their method and seed are replaced.
        methods: as in `RunSettings.method`.
        search: what to search, as `parse_searches` reads it; the published grids of the methods if it is empty.
        how: to search.
        planner: makes runs of settings.

    Raises:
        ValueError: a setting, a method or what is searched is wrong, or there is nothing to choose.
    """
    if not methods or len(set(methods)) < len(methods):
        raise ValueError(f"methods must be given, each once, got {list(methods)}")
    held, options = dict[str, HeldOut](), dict[str, Mapping[str, type]]()
    for method in methods:
        own = replace(settings, method=method)
        task, data = planner.task_and_data(own)
        held[method], options[method] = task.held_out(own, data), task.options(method)
    reserved = [name for one in held.values() for name in _held_out_settings(one)]
    searches = parse_searches(search, options, settings, reserved)
    if not search:
        searches = {method: _published_grid(held[method].final, planner) for method in methods}
    if not any(searches.values()):
        raise ValueError(f"there is nothing to choose of {', '.join(methods)}; say what: --search NAME=VALUE,VALUE")
    found = [
        Candidate(
            method=method,
            held_out=held[method],
            searched=searches[method],
            planner=planner,
            how=how,
            config=planner.resolve(replace(held[method].choosing, seed=how.seeds[0])),
        )
        for method in methods
    ]
    for one in found:
        planner.resolve(one.held_out.final)
        one.check()
    figures = {one.figure.name for one in found}
    if len(figures) > 1:
        raise ValueError(f"methods must be chosen by one figure, got {' and '.join(sorted(figures))}")
    return found


def _held_out_settings(held: HeldOut) -> list[str]:
    """The settings that decide what a run is judged by."""
    names = [f.name for f in fields(held.final)]
    return [name for name in names if getattr(held.choosing, name) != getattr(held.final, name)]


def _published_grid(settings: RunSettings, planner: Planner) -> tuple[SearchedSetting, ...]:
    """The grid that the method declares, without what the user has given."""
    task, data = planner.task_and_data(settings)
    text = settings.method or ""
    given = {word.partition("=")[0] for word in split_method(text)[1].split(",")} | set(settings.given())
    known = task.options(text)
    grid = task.grid(settings, data)
    for name in grid:
        check_choice(f"setting in the grid of method {text}", name, known)
    return tuple(
        SearchedSetting(name=name, of_method=True, values=tuple(known[name](value) for value in values))
        for name, values in grid.items()
        if name not in given
    )


FINAL_FOLDER = "final"
METHOD_FIELDS = ("method", "method_options")
"""Fields of a configuration in which the methods of a comparison differ anyway."""


def final_runs(
    candidates: Sequence[Candidate], chosen: Sequence[MethodSearchRecord], seeds: Sequence[int], folder: Path
) -> list[PlannedRun]:
    """The final runs of the methods for which something could be chosen, or nothing had to be.

    Args:
        candidates: the methods.
        chosen: what the search says of each.
        seeds: of the runs.
        folder: of the search.
    """
    pairs = [
        (one, found.chosen or {})
        for one, found in zip(candidates, chosen, strict=True)
        if found.chosen is not None or not one.searched
    ]
    planned = [one.final_run(point, seed, folder / FINAL_FOLDER) for seed in seeds for one, point in pairs]
    # What a choice has changed beside the method's own options must not keep the runs apart in the comparison.
    without = [one.planner.resolve(replace(one.held_out.final, seed=seeds[0])) for one, _ in pairs]
    names = {
        name
        for plain, run in zip(without, planned, strict=False)
        for name in plain.differences(run.config)
        if name not in METHOD_FIELDS
    }
    return [replace(run, config=replace(run.config, chosen=tuple(sorted(names)))) for run in planned]
