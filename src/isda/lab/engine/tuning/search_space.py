"""Searched settings, points of the search space, and trials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_type_hints

from isda._utils.choices import check_choice
from isda.lab.engine.options import canonical_method, given_options, parse_value, scalar_type, split_method
from isda.lab.engine.settings import RunSettings

Point = dict[str, Any]
"""A value for each searched setting."""

RANGE = ".."
NOT_SEARCHABLE = ("data", "method", "seed")
"""Settings that define the experiment and cannot be searched."""


@dataclass(frozen=True, kw_only=True)
class SearchedSetting:
    """One searched setting: ``values`` in order, or from ``low`` to ``high``."""

    name: str
    of_method: bool
    """Whether it is an option of the method; else it is a setting of the run."""
    values: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @property
    def whole(self) -> bool:
        """Whether its values are integers."""
        ends = self.values or (self.low, self.high)
        return all(isinstance(value, int) for value in ends)


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
    """The searched settings of each method, from words ``[METHOD:]NAME=VALUE,VALUE`` or ``NAME=LOW..HIGH``.

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
    of_run = _settings_types(settings, reserved)
    searches: dict[str, list[SearchedSetting]] = {method: [] for method in options}
    for word in words:
        key, equals, text = word.partition("=")
        prefix, _, name = key.rpartition(":")
        if not equals or not text:
            raise ValueError(f"search must be written NAME=VALUE,VALUE or NAME=LOW..HIGH, got {word!r}")
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
            setting = _parse_search(name, text, kind, bool(with_option))
            _check_new(setting, method, searches[method])
            searches[method].append(setting)
    return {method: tuple(searched) for method, searched in searches.items()}


def _settings_types(settings: RunSettings, reserved: Sequence[str]) -> dict[str, type]:
    hints = {name: scalar_type(hint) for name, hint in get_type_hints(type(settings)).items()}
    return {name: kind for name, kind in hints.items() if kind and name not in (*NOT_SEARCHABLE, *reserved)}


def _check_new(setting: SearchedSetting, method: str, others: Sequence[SearchedSetting]) -> None:
    name = setting.name
    if any(other.name == name for other in others):
        raise ValueError(f"search must name {name} once for method {method}, got it twice")
    if setting.of_method and name in given_options(method):
        raise ValueError(f"{name} must be searched or given, got both for method {method}")


def _parse_search(name: str, text: str, kind: type, of_method: bool) -> SearchedSetting:
    what = f"searched {name}"
    if RANGE in text:
        low, high = (parse_value(what, end, kind) for end in text.split(RANGE, 1))
        if kind not in (int, float) or not (low < high and math.isfinite(high - low)):
            raise ValueError(f"{what} must be a range of numbers LOW..HIGH in order, got {text!r}")
        return SearchedSetting(name=name, of_method=of_method, low=low, high=high)
    values = [parse_value(what, word, kind) for word in text.split(",")]
    numbers = kind in (int, float)
    if len(set(values)) < len(values) or (numbers and not all(map(math.isfinite, values))):
        raise ValueError(f"{what} must have different {'finite numbers' if numbers else 'values'}, got {text!r}")
    return SearchedSetting(name=name, of_method=of_method, values=tuple(sorted(values) if numbers else values))


@dataclass(frozen=True)
class Proposal:
    """A point to try."""

    point: Point
    why: str
    """ "grid", "widened NAME", "refined NAME" or "sampled"."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A point that was evaluated with every seed."""

    number: int
    point: Point
    why: str
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


def best_trial(trials: Sequence[Trial], lower_is_better: bool) -> Trial | None:
    """The trial with the best figure, the first of equals; None if all diverged.

    Example:
        >>> figures = enumerate((3.0, 2.0, 2.0))
        >>> tried = [Trial(number=n, point={"x": n}, why="grid", values={"0": figure}) for n, figure in figures]
        >>> best_trial(tried, lower_is_better=True).number
        1
    """
    sign = 1 if lower_is_better else -1
    ranked = [(sign * trial.value, trial.number, trial) for trial in trials if trial.value is not None]
    return min(ranked, key=lambda entry: entry[:2])[2] if ranked else None
