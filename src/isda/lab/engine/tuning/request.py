"""A search as requested: validated candidates, the runs of their trials, and the final runs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from isda._utils.choices import check_choice, check_range
from isda.lab.engine.comparison import Planner, run_folder_name
from isda.lab.engine.config import Figure, RunConfig
from isda.lab.engine.executors import PlannedRun
from isda.lab.engine.options import given_options
from isda.lab.engine.run_records import SEARCH_FOLDER
from isda.lab.engine.settings import RunSettings
from isda.lab.engine.task import HeldOut
from isda.lab.engine.tuning.proposers import GridProposer, OptunaProposer, Proposer
from isda.lab.engine.tuning.records import MAX_TRIALS, MethodSearchRecord
from isda.lab.engine.tuning.search_space import Point, SearchedSetting, apply_point, parse_searches

SAMPLERS = ("grid", "tpe", "random")
DEFAULT_TRIALS = 20
"""Of tpe and random."""
TEST_PART = "test"
"""The part of the data on which no run of a search may be evaluated."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search."""

    sampler: str = "grid"
    """grid, tpe or random."""
    trials: int | None = None
    """Of each method; by default as many as a grid takes, or 20."""
    widen: int = 3
    """How many steps beyond its grid a setting may take."""
    seeds: tuple[int, ...] = (100,)
    """Of the runs of each trial."""
    by: str | None = None
    """The figure to choose by; the task's first by default."""
    seed: int = 0
    """Of the sampler."""

    def __post_init__(self) -> None:
        check_choice("sampler", self.sampler, SAMPLERS)
        if self.trials is not None:
            check_range("trials", self.trials, 1, MAX_TRIALS)
        if self.widen < 0:
            raise ValueError(f"widen must be at least 0, got {self.widen}")
        if not self.seeds:
            raise ValueError("a trial must have at least 1 seed, got none")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method whose settings are chosen; ``searched`` is empty if there are none."""

    method: str
    held_out: HeldOut
    searched: tuple[SearchedSetting, ...]
    planner: Planner
    options: SearchOptions
    config: RunConfig
    """Of a run of the search without searched settings."""

    @property
    def figure(self) -> Figure:
        """The figure to choose by."""
        known = {figure.name: figure for figure in self.config.figures}
        return known[check_choice("by", self.options.by or self.config.figures[0].name, known)]

    @property
    def study(self) -> str:
        """A unique name of the search."""
        searched = [asdict(setting) for setting in self.searched]
        identity = [self.config.identity, searched, asdict(self.options), self.figure.name]
        return f"{self.method} {hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]}"

    def runs(self, point: Point, folder: Path) -> list[PlannedRun]:
        """The runs of a trial, one for each seed, in the folder of the search."""
        settings, name = apply_point(self.held_out.choosing, self.searched, point)
        below = folder / SEARCH_FOLDER
        return [
            self.planner.plan(replace(settings, seed=seed), below / run_folder_name(name, seed))
            for seed in self.options.seeds
        ]

    def final_run(self, point: Point, seed: int, folder: Path) -> PlannedRun:
        """A run on all data at a point, in the folder of the final runs."""
        settings, name = apply_point(self.held_out.final, self.searched, point)
        return self.planner.plan(replace(settings, seed=seed), folder / run_folder_name(name, seed))

    def name(self, point: Point) -> str:
        """The method with the values of a point as options."""
        return apply_point(self.held_out.final, self.searched, point)[1]

    def proposer(self) -> Proposer:
        """Proposes the trials."""
        options, lower = self.options, self.figure.lower_is_better
        if options.sampler == "grid":
            return GridProposer(self.searched, lower, options.trials, options.seed, options.widen, self.point_problem)
        trials, learning = options.trials or DEFAULT_TRIALS, options.sampler == "tpe"
        return OptunaProposer(self.searched, lower, trials, options.seed, learning=learning)

    def point_problem(self, point: Point) -> str:
        """Why a point is invalid; empty if it is valid."""
        try:
            self._resolved(point)
        except ValueError as error:
            return str(error)
        return ""

    def check(self) -> None:
        """Raise a ValueError unless the first points are valid, distinct, and evaluated on held-out data."""
        if self.config.evaluated_on == TEST_PART:
            raise ValueError(f"settings must not be chosen on the test set, as those of method {self.method} would be")
        ranges = [setting.name for setting in self.searched if not setting.values]
        if ranges and self.options.sampler == "grid":
            raise ValueError(f"a grid needs values, got a range of {ranges[0]}; use --sampler tpe for ranges")
        size = math.prod(len(setting.values) for setting in self.searched)
        if size > MAX_TRIALS:
            raise ValueError(f"a grid must have at most {MAX_TRIALS} points, got {size}; use --sampler random")
        seen: dict[str, Point] = {}
        for point in self.proposer().first() if self.searched else ():
            other = seen.setdefault(self._resolved(point).identity, point)
            if other is not point:
                raise ValueError(f"{self.name(other)} and {self.name(point)} are the same run: nothing to choose")

    def _resolved(self, point: Point) -> RunConfig:
        settings, _ = apply_point(self.held_out.choosing, self.searched, point)
        return self.planner.resolve(replace(settings, seed=self.options.seeds[0]))


def make_candidates(
    settings: RunSettings,
    methods: Sequence[str],
    search: Sequence[str],
    search_options: SearchOptions,
    planner: Planner,
) -> list[Candidate]:
    """The validated searches of all methods.

    Args:
        settings: what all runs share; their method and seed are replaced.
        methods: as in `RunSettings.method`.
        search: words for `parse_searches`; if empty, the published grids of the methods are searched.
        search_options: how to search.
        planner: plans the runs.

    Raises:
        ValueError: a setting, a method or a searched setting is invalid, or there is nothing to choose.
    """
    if not methods or len(set(methods)) < len(methods):
        raise ValueError(f"methods must be given, each once, got {list(methods)}")
    held, options = dict[str, HeldOut](), dict[str, Mapping[str, type]]()
    for method in methods:
        with_method = replace(settings, method=method)
        task, data = planner.task_and_data(with_method)
        held[method], options[method] = task.held_out(with_method, data), task.options(method)
    reserved = [
        field.name
        for held_out in held.values()
        for field in fields(held_out.final)
        if getattr(held_out.choosing, field.name) != getattr(held_out.final, field.name)
    ]
    searches = parse_searches(search, options, settings, reserved)
    if not search:
        searches = {method: _published_grid(held[method].final, planner) for method in methods}
    if not any(searches.values()):
        raise ValueError(f"nothing to choose by default for {', '.join(methods)}; add --search NAME=VALUE,VALUE")
    candidates = [
        Candidate(
            method=method,
            held_out=held[method],
            searched=searches[method],
            planner=planner,
            options=search_options,
            config=planner.resolve(replace(held[method].choosing, seed=search_options.seeds[0])),
        )
        for method in methods
    ]
    for candidate in candidates:
        planner.resolve(candidate.held_out.final)
        candidate.check()
    figures = {candidate.figure.name for candidate in candidates}
    if len(figures) > 1:
        raise ValueError(f"methods must be chosen by one figure, got {' and '.join(sorted(figures))}")
    return candidates


def _published_grid(settings: RunSettings, planner: Planner) -> tuple[SearchedSetting, ...]:
    """The grid of the method, without the options and settings that the user has given."""
    task, data = planner.task_and_data(settings)
    text = settings.method or ""
    given = given_options(text) | set(settings.given())
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
"""Fields in which the methods of a comparison always differ."""


def final_runs(
    candidates: Sequence[Candidate], chosen: Sequence[MethodSearchRecord], seeds: Sequence[int], folder: Path
) -> list[PlannedRun]:
    """The final runs of the methods that have a choice or nothing to choose.

    Args:
        candidates: the methods.
        chosen: the record of each search.
        seeds: of the runs.
        folder: of the search.
    """
    pairs = [
        (candidate, record.chosen or {})
        for candidate, record in zip(candidates, chosen, strict=True)
        if record.chosen is not None or not candidate.searched
    ]
    planned = [candidate.final_run(point, seed, folder / FINAL_FOLDER) for seed in seeds for candidate, point in pairs]
    # Chosen settings of the run, which differ between methods, must not separate the runs in the comparison.
    names = {
        name
        for (candidate, _), run in zip(pairs, planned, strict=False)
        for name in candidate.planner.resolve(replace(candidate.held_out.final, seed=seeds[0])).differences(run.config)
        if name not in METHOD_FIELDS
    }
    return [replace(run, config=replace(run.config, chosen=tuple(sorted(names)))) for run in planned]
