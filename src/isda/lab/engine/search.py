"""Search for settings of methods: every point of a grid is trained on part of the data and judged by the held-out rest.

Finished runs are not repeated, so a search that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from isda import __version__
from isda.lab.choices import check_choice, check_range
from isda.lab.engine.comparison import Planner, run_folder_name, run_planned
from isda.lab.engine.config import Figure, RunConfig
from isda.lab.engine.executors.runs import Execution, PlannedRun, RunProblem, RunsFailed, Watcher
from isda.lab.engine.options import canonical_method, given_options, parse_value, scalar_type, split_method
from isda.lab.engine.run_folder import RunFolder
from isda.lab.engine.run_records import SEARCH_FOLDER, TUNE_FILE
from isda.lab.engine.settings import RunSettings
from isda.lab.engine.task import HeldOut
from isda.lab.files import json_text, read_json, write_text

Point = dict[str, Any]
"""A value for each searched setting."""

NOT_SEARCHABLE = ("data", "method", "seed")
"""Settings that define the experiment and cannot be searched."""
METHOD_FIELDS = ("method", "method_options")
"""Fields in which the methods of a comparison always differ."""
TEST_PART = "test"
"""The part of the data on which no run of a search may be evaluated."""
FINAL_FOLDER = "final"
MAX_POINTS = 10_000
SEARCH_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class SearchedSetting:
    """One searched setting and its values in order."""

    name: str
    of_method: bool
    """Whether it is an option of the method; else it is a setting of the run."""
    values: tuple[Any, ...]

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A point that was evaluated with every seed."""

    number: int
    point: Point
    values: dict[str, float] = field(default_factory=dict)
    """The held-out figure by seed; empty if a run diverged."""
    problem: str = ""
    """The error of a run that diverged."""

    @property
    def value(self) -> float | None:
        """The mean over seeds; None, which counts as worst, if a run diverged."""
        return None if self.problem or not self.values else sum(self.values.values()) / len(self.values)

    def as_json(self) -> dict[str, Any]:
        """The trial as plain values."""
        return asdict(self) | {"value": self.value}


@dataclass(frozen=True, kw_only=True)
class MethodSearchRecord:
    """The search of one method."""

    method: str
    """As the user wrote it."""
    held_out: str
    """Describes the held-out data."""
    searched: tuple[SearchedSetting, ...]
    trials: tuple[Trial, ...]
    chosen: Point | None
    """The best point; None if there is nothing to choose, or no finished trial."""
    chosen_method: str
    """The method with the chosen values as options, settings of the run included."""
    notes: tuple[str, ...] = ()
    """About a choice at the edge of the tried values."""

    @property
    def inside(self) -> bool:
        """Whether the choice is inside the tried values."""
        return self.chosen is not None and not self.notes

    def as_json(self) -> dict[str, Any]:
        """The search as plain values."""
        return asdict(self) | {"trials": [trial.as_json() for trial in self.trials], "inside": self.inside}

    @property
    def best(self) -> Trial | None:
        """The trial of the choice."""
        return next((trial for trial in self.trials if trial.point == self.chosen), None)


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """The search of a tune folder."""

    data: str
    network: str
    scale: str
    epochs: int
    figure: Figure
    """The figure to choose by."""
    seeds: tuple[int, ...]
    """Of the runs of each trial."""
    finished: bool
    methods: tuple[MethodSearchRecord, ...]
    folder: Path | None = None
    """It was read from."""

    @property
    def title(self) -> str:
        """Data and network."""
        return f"{self.data} with {self.network}"

    def as_json(self) -> dict[str, Any]:
        """The search as plain values."""
        record = {name: value for name, value in asdict(self).items() if name not in ("folder", "methods")}
        methods = [method.as_json() for method in self.methods]
        return {"format": SEARCH_FORMAT, "version": __version__, **record, "methods": methods}


def find_searches(paths: Iterable[Path]) -> list[SearchRecord]:
    """The searches in folders at any depth, each once."""
    unique: dict[Path, Path] = {}
    for path in paths:
        for folder, below, files in os.walk(path):
            below.sort()
            if TUNE_FILE in files:
                unique.setdefault(Path(folder).resolve(), Path(folder))
    return [read_search(folder) for folder in unique.values()]


def read_search(folder: Path) -> SearchRecord:
    """Read tune.json; raises a ValueError if it is damaged."""
    path = folder / TUNE_FILE
    stored = read_json(path)
    if stored.get("format") != SEARCH_FORMAT:
        raise ValueError(f"{path} must be of format {SEARCH_FORMAT}, got {stored.get('format')!r}")
    try:
        names = {f.name for f in fields(SearchRecord)} - {"folder"}
        values = {name: stored[name] for name in names}
        values |= {"figure": Figure(**stored["figure"]), "seeds": tuple(stored["seeds"])}
        return SearchRecord(**values | {"methods": tuple(map(_read_method, stored["methods"]))}, folder=folder)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe a search: {error!r}") from error


def _read_method(stored: Mapping[str, Any]) -> MethodSearchRecord:
    searched = tuple(SearchedSetting(**one | {"values": tuple(one["values"])}) for one in stored["searched"])
    trials = tuple(Trial(**{f.name: one[f.name] for f in fields(Trial)}) for one in stored["trials"])
    plain = {name: stored[name] for name in ("method", "held_out", "chosen", "chosen_method")}
    return MethodSearchRecord(searched=searched, trials=trials, notes=tuple(stored["notes"]), **plain)


# -- what is searched --------------------------------------------------------------------------------------------------


def value_text(value: Any) -> str:
    """A value as written in method strings and names of folders.

    Example:
        >>> value_text(0.50), value_text(True), value_text("tilted"), value_text(2.0)
        ('0.5', 'true', 'tilted', '2')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def grid_points(searched: Sequence[SearchedSetting]) -> list[Point]:
    """Every combination of the values.

    Example:
        >>> grid_points([SearchedSetting(name="lr", of_method=False, values=(0.1, 0.2))])
        [{'lr': 0.1}, {'lr': 0.2}]
    """
    names = [setting.name for setting in searched]
    combinations = itertools.product(*(setting.values for setting in searched))
    return [dict(zip(names, values, strict=True)) for values in combinations]


def spread(points: Sequence[Point], wanted: int | None) -> list[Point]:
    """``wanted`` of the points, evenly spaced from the first to the last; all if there are no more.

    Example:
        >>> [point["x"] for point in spread([{"x": x} for x in range(5)], 3)]
        [0, 2, 4]
    """
    if wanted is None or wanted >= len(points):
        return list(points)
    if wanted == 1:
        return [points[len(points) // 2]]
    return [points[round(index * (len(points) - 1) / (wanted - 1))] for index in range(wanted)]


def apply_point(settings: RunSettings, searched: Sequence[SearchedSetting], point: Point) -> tuple[RunSettings, str]:
    """The settings at a point, and its name: the method with all searched values as options.

    Example:
        >>> from isda.lab.engine import TrainingSettings
        >>> strength = SearchedSetting(name="lambda_0", of_method=True, values=(1.0,))
        >>> rate = SearchedSetting(name="lr", of_method=False, values=(0.1,))
        >>> point = {"lambda_0": 1.0, "lr": 0.1}
        >>> settings, name = apply_point(TrainingSettings(method="isda"), [strength, rate], point)
        >>> settings.method, settings.lr, name
        ('isda:lambda_0=1', 0.1, 'isda:lambda_0=1,lr=0.1')
    """
    of_method = {setting.name: point[setting.name] for setting in searched if setting.of_method}
    of_run = {setting.name: point[setting.name] for setting in searched if not setting.of_method}
    method = _with_options(settings.method or "", of_method)
    return replace(settings, method=method, **of_run), _with_options(method, of_run)


def _with_options(method: str, values: Mapping[str, Any]) -> str:
    name, words = split_method(method)
    options = ",".join(filter(None, [words, *(f"{key}={value_text(value)}" for key, value in values.items())]))
    return canonical_method(f"{name}:{options}" if options else name)


def parse_searches(
    words: Sequence[str],
    options: Mapping[str, Mapping[str, type]],
    settings: RunSettings,
    reserved: Sequence[str],
) -> dict[str, tuple[SearchedSetting, ...]]:
    """The searched settings of each method, from words ``[METHOD:]NAME=VALUE,VALUE``.

    A name is searched for the methods that have it as an option; if none has, it is a setting of all runs.

    Args:
        words: of the command line.
        options: by method string: its options and their types.
        settings: of the run.
        reserved: settings that decide what a run is evaluated on.

    Raises:
        ValueError: a name is unknown, values cannot be parsed, or a setting is given already.

    Example:
        >>> found = parse_searches(["gamma=0.5,1"], {"focal": {"gamma": float}, "isda": {}}, RunSettings(), [])
        >>> found["focal"][0].values, found["isda"]
        ((0.5, 1.0), ())
    """
    hints = {name: scalar_type(hint) for name, hint in get_type_hints(type(settings)).items()}
    of_run = {name: kind for name, kind in hints.items() if kind and name not in (*NOT_SEARCHABLE, *reserved)}
    searches: dict[str, list[SearchedSetting]] = {method: [] for method in options}
    for word in words:
        key, equals, text = word.partition("=")
        prefix, _, name = key.rpartition(":")
        if not equals or not text:
            raise ValueError(f"search must be written NAME=VALUE,VALUE, got {word!r}")
        methods = [method for method in options if prefix in ("", split_method(method)[0])]
        if not methods:
            check_choice("method of search", prefix, dict.fromkeys(split_method(method)[0] for method in options))
        with_option = [method for method in methods if name in options[method]]
        if not with_option:
            known = dict.fromkeys([*(option for method in methods for option in options[method]), *of_run])
            check_choice("searched setting", name, known)
            if name in settings.given():
                raise ValueError(f"{name} must be searched or given, got both")
        for method in with_option or methods:
            kind = options[method].get(name) or of_run[name]
            values = _values(name, text, kind)
            if any(other.name == name for other in searches[method]):
                raise ValueError(f"search must name {name} once for method {method}, got it twice")
            if with_option and name in given_options(method):
                raise ValueError(f"{name} must be searched or given, got both for method {method}")
            searches[method].append(SearchedSetting(name=name, of_method=bool(with_option), values=values))
    return {method: tuple(searched) for method, searched in searches.items()}


def _values(name: str, text: str, kind: type) -> tuple[Any, ...]:
    values = [parse_value(f"searched {name}", word, kind) for word in text.split(",")]
    numbers = kind in (int, float)
    if len(set(values)) < len(values) or (numbers and not all(map(math.isfinite, values))):
        raise ValueError(f"searched {name} must have different values, got {text!r}")
    return tuple(sorted(values) if numbers else values)


# -- the search --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search."""

    trials: int | None = None
    """Points of each method, evenly spaced in its grid; all by default."""
    seeds: tuple[int, ...] = (100,)
    """Of the runs of each trial."""
    by: str | None = None
    """The figure to choose by; the task's first by default."""

    def __post_init__(self) -> None:
        if self.trials is not None:
            check_range("trials", self.trials, 1, MAX_POINTS)
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
    def points(self) -> list[Point]:
        """The points to try."""
        return spread(grid_points(self.searched), self.options.trials) if self.searched else []

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

    def check(self) -> None:
        """Raise a ValueError unless the points are valid, distinct, and evaluated on held-out data."""
        if self.config.evaluated_on == TEST_PART:
            raise ValueError(f"settings must not be chosen on the test set, as those of method {self.method} would be")
        size = math.prod(len(setting.values) for setting in self.searched)
        if size > MAX_POINTS:
            raise ValueError(f"a grid must have at most {MAX_POINTS} points, got {size}")
        seen: dict[str, Point] = {}
        for point in self.points:
            settings, name = apply_point(self.held_out.choosing, self.searched, point)
            config = self.planner.resolve(replace(settings, seed=self.options.seeds[0]))
            other = seen.setdefault(config.identity, point)
            if other is not point:
                first = apply_point(self.held_out.choosing, self.searched, other)[1]
                raise ValueError(f"{first} and {name} are the same run: nothing to choose")

    def trial(self, number: int, folder: Path, problems: Mapping[Path, RunProblem]) -> Trial:
        """The trial of a point whose runs have ended; raises a ValueError if one failed and did not diverge."""
        point, values, messages = self.points[number], dict[str, float](), list[str]()
        for run in self.runs(point, folder):
            if run.folder in problems:
                messages.append(f"seed {run.config.seed}: {problems[run.folder].sentence}")
                continue
            value = RunFolder(run.folder).read_result().get(self.figure.name)
            if isinstance(value, int | float):
                values[str(run.config.seed)] = float(value)
            else:
                messages.append(f"seed {run.config.seed}: it has no {self.figure.title}")
        return Trial(number=number, point=point, values={} if messages else values, problem="; ".join(messages))

    def record(self, trials: Sequence[Trial]) -> MethodSearchRecord:
        """The search as it stands."""
        best = best_trial(trials, self.figure.lower_is_better)
        name = self.method if not self.searched else ""
        if best is not None:
            name = apply_point(self.held_out.final, self.searched, best.point)[1]
        return MethodSearchRecord(
            method=self.method,
            held_out=self.held_out.description,
            searched=self.searched,
            trials=tuple(trials),
            chosen=None if best is None else best.point,
            chosen_method=name,
            notes=() if best is None else tuple(_edges(self.searched, best, trials)),
        )


def best_trial(trials: Sequence[Trial], lower_is_better: bool) -> Trial | None:
    """The trial with the best figure, the first of equals; None if all diverged.

    Example:
        >>> figures = enumerate((3.0, 2.0, 2.0))
        >>> tried = [Trial(number=n, point={"x": n}, values={"0": figure}) for n, figure in figures]
        >>> best_trial(tried, lower_is_better=True).number
        1
    """
    sign = 1 if lower_is_better else -1
    ranked = [(sign * trial.value, trial.number, trial) for trial in trials if trial.value is not None]
    return min(ranked, key=lambda entry: entry[:2])[2] if ranked else None


def _edges(searched: Sequence[SearchedSetting], best: Trial, trials: Sequence[Trial]) -> Iterable[str]:
    """Which values of the best trial are at the edge of what was tried."""
    for setting in searched:
        tried = sorted({trial.point[setting.name] for trial in trials}) if setting.numeric else []
        value = best.point[setting.name]
        if len(tried) > 1 and value in (tried[0], tried[-1]):
            yield f"{setting.name}={value:g} is the {'largest' if value == tried[-1] else 'smallest'} value tried"


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
        f.name
        for held_out in held.values()
        for f in fields(held_out.final)
        if getattr(held_out.choosing, f.name) != getattr(held_out.final, f.name)
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


def run_search(candidates: Sequence[Candidate], folder: Path, watcher: Watcher, execution: Execution) -> SearchRecord:
    """Execute all runs of the search that are missing; returns its record, which tune.json holds.

    Raises:
        ValueError: a folder holds another run or a damaged one.
        RunsFailed: runs failed for another reason than a NaN or infinite loss, after all others are finished.
        Stopped: after SIGTERM or Ctrl-C; the current runs have saved a checkpoint.
    """
    planned = [run for candidate in candidates for point in candidate.points for run in candidate.runs(point, folder)]
    problems: Mapping[Path, RunProblem] = {}
    _write(candidates, [candidate.record([]) for candidate in candidates], folder, finished=False)
    try:
        run_planned(list({run.folder: run for run in planned}.values()), watcher=watcher, execution=execution)
    except RunsFailed as failed:
        if not all(problem.diverged for problem in failed.problems.values()):
            raise
        problems = failed.problems
    records = [
        candidate.record([candidate.trial(number, folder, problems) for number in range(len(candidate.points))])
        for candidate in candidates
    ]
    return _write(candidates, records, folder, finished=True)


def _write(
    candidates: Sequence[Candidate], methods: Sequence[MethodSearchRecord], folder: Path, *, finished: bool
) -> SearchRecord:
    first = candidates[0]
    record = SearchRecord(
        **{name: getattr(first.config, name) for name in ("data", "network", "scale", "epochs")},
        figure=first.figure,
        seeds=first.options.seeds,
        finished=finished,
        methods=tuple(methods),
    )
    write_text(folder / TUNE_FILE, json_text(record.as_json(), indent=1) + "\n")
    return record


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
