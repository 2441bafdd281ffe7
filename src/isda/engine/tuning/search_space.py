"""Searched settings, points of the search space, and trials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

from isda._utils.choices import check_choice
from isda.engine.options import canonical_method, parse_value, scalar_type, split_method
from isda.engine.settings import RunSettings

Point = dict[str, Any]
"""A value for each searched setting."""

RANGE = ".."
NOT_SEARCHABLE = ("data", "method", "seed")
"""Settings that say what is tuned, not how."""


@dataclass(frozen=True, kw_only=True)
class SearchedSetting:
    """One searched setting: ``values`` in order, or from ``low`` to ``high``."""

    name: str
    of_method: bool
    """Whether it is an option of the method, else it is a setting of the run."""
    values: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers, between and beyond which there are others."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @property
    def whole(self) -> bool:
        """Whether they are integers."""
        ends = self.values or (self.low, self.high)
        return all(isinstance(value, int) for value in ends)


def value_text(value: Any) -> str:
    """A value as it is written in a method and in the name of a folder.

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
        >>> points_of([Searched(name="lr", of_method=False, values=(0.1, 0.2))])
        [{'lr': 0.1}, {'lr': 0.2}]
    """
    names = [one.name for one in searched]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(one.values for one in searched))]


def apply_point(settings: RunSettings, searched: Sequence[SearchedSetting], point: Point) -> tuple[RunSettings, str]:
    """The settings at a point, and a name for it: the method with all that was searched behind its colon.

    Example:
        >>> from isda.engine import TrainingSettings
        >>> strength = SearchedSetting(name="lambda_0", of_method=True, values=(1.0,))
        >>> rate = SearchedSetting(name="lr", of_method=False, values=(0.1,))
        >>> point = {"lambda_0": 1.0, "lr": 0.1}
        >>> settings, name = apply_point(TrainingSettings(method="isda"), [strength, rate], point)
        >>> settings.method, settings.lr, name
        ('isda:lambda_0=1', 0.1, 'isda:lambda_0=1,lr=0.1')
    """
    of_method = {one.name: point[one.name] for one in searched if one.of_method}
    of_run = {one.name: point[one.name] for one in searched if not one.of_method}
    method = _with_options(settings.method or "", of_method)
    return replace(settings, method=method, **of_run), _with_options(method, of_run)


def _with_options(method: str, values: Mapping[str, Any]) -> str:
    name, words = split_method(method)
    said = ",".join(filter(None, [words, *(f"{key}={value_text(value)}" for key, value in values.items())]))
    return canonical_method(f"{name}:{said}" if said else name)


def parse_searches(
    words: Sequence[str],
    options: Mapping[str, Mapping[str, type]],
    settings: RunSettings,
    reserved: Sequence[str],
) -> dict[str, tuple[SearchedSetting, ...]]:
    """What is searched of each method, from words ``[METHOD:]NAME=VALUE,VALUE`` or ``NAME=LOW..HIGH``.

    A name is searched by the methods that have it as an option; if none has, it is a setting of the run, for all.

    Args:
        words: as a user writes them.
        options: of each method, as it is written: its options and their types.
        settings: of the run.
        reserved: settings that decide what a run is judged by.

    Raises:
        ValueError: a name that nobody knows, values that cannot be read, or one that is given already.

    Example:
        >>> found = read_searches(["gamma=0.5,1"], {"focal": {"gamma": float}, "isda": {}}, RunSettings(), [])
        >>> found["focal"][0].values, found["isda"]
        ((0.5, 1.0), ())
    """
    of_run = _settings_types(settings, reserved)
    found: dict[str, list[SearchedSetting]] = {method: [] for method in options}
    for word in words:
        key, equals, text = word.partition("=")
        prefix, _, name = key.rpartition(":")
        if not equals or not text:
            raise ValueError(f"search must be written NAME=VALUE,VALUE or NAME=LOW..HIGH, got {word!r}")
        meant = [method for method in options if prefix in ("", split_method(method)[0])]
        if not meant:
            check_choice("method of search", prefix, dict.fromkeys(split_method(method)[0] for method in options))
        having = [method for method in meant if name in options[method]]
        if not having:
            known = dict.fromkeys([*(option for method in meant for option in options[method]), *of_run])
            check_choice("searched setting", name, known)
            if name in settings.given():
                raise ValueError(f"{name} must be searched or given, got both")
        for method in having or meant:
            kind = options[method].get(name) or of_run[name]
            one = _parse_search(name, text, kind, bool(having))
            _check_new(one, method, found[method])
            found[method].append(one)
    return {method: tuple(searched) for method, searched in found.items()}


def _settings_types(settings: RunSettings, reserved: Sequence[str]) -> dict[str, type]:
    hints = {name: scalar_type(hint) for name, hint in get_type_hints(type(settings)).items()}
    return {name: kind for name, kind in hints.items() if kind and name not in (*NOT_SEARCHABLE, *reserved)}


def _check_new(one: SearchedSetting, method: str, others: Sequence[SearchedSetting]) -> None:
    if any(other.name == one.name for other in others):
        raise ValueError(f"search must name {one.name} once for method {method}, got it twice")
    if one.of_method and any(word.partition("=")[0] == one.name for word in split_method(method)[1].split(",")):
        raise ValueError(f"{one.name} must be searched or given, got both for method {method}")


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
    """A point that was tried with every seed."""

    number: int
    point: Point
    why: str
    values: dict[str, float] = field(default_factory=dict)
    """The held-out figure by seed; empty if a run diverged."""
    problem: str = ""
    """What happened to a run that diverged."""

    @property
    def value(self) -> float | None:
        """The mean over seeds; None, which is worse than any number, if a run diverged."""
        return None if self.problem or not self.values else sum(self.values.values()) / len(self.values)

    def as_json(self) -> dict[str, Any]:
        """The trial as plain values."""
        return {
            "number": self.number,
            "point": self.point,
            "why": self.why,
            "value": self.value,
            "values": self.values,
            "problem": self.problem,
        }


def best_trial(trials: Sequence[Trial], lower_is_better: bool) -> Trial | None:
    """The trial with the best figure, the first of equals; None if all have diverged.

    Example:
        >>> figures = enumerate((3.0, 2.0, 2.0))
        >>> tried = [Trial(number=n, point={"x": n}, why="grid", values={"0": figure}) for n, figure in figures]
        >>> best(tried, lower_is_better=True).number
        1
    """
    sign = 1 if lower_is_better else -1
    judged = [(sign * trial.value, trial.number, trial) for trial in trials if trial.value is not None]
    return min(judged, key=lambda one: one[:2])[2] if judged else None
