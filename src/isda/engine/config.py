"""Run configurations: the resolved settings in config.json, and the figures and curves of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, TypeVar

from isda.engine.digests import json_text, read_verified, with_digest


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of a finished run. The first figure of a task is the one that methods are compared by."""

    name: str
    """Its key in result.json."""
    metric: str
    """The key in metrics.jsonl that it is made from, such as "test/error"."""
    title: str
    """As it stands in tables and sentences: "test error"."""
    unit: str = ""
    """"%" or a word; empty for a bare number."""
    digits: int = 2
    lower_is_better: bool = True
    averaged: bool = True
    """Whether it is the mean over the last epochs, as the paper reports errors, or the last epoch's value."""

    @property
    def heading(self) -> str:
        """The title with its unit, for the head of a column."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    @property
    def difference_unit(self) -> str:
        """What a difference of two is counted in: percentages differ by points."""
        return "points" if self.unit == "%" else self.unit


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One metric over the epochs."""

    metric: str
    """The key in metrics.jsonl."""
    title: str
    unit: str = ""
    logarithmic: bool = False
    """Whether a logarithmic axis suits it where it spans more than one and a half decades."""


def result_figures(
    figures: Iterable[Figure], metrics: Sequence[Mapping[str, Any]], average_last: int
) -> dict[str, float]:
    """The figures of a run from the lines of its metrics, as result.json has them.

    Of the first figure the last epoch's value stands beside its mean, under ``NAME_last``.

    Example:
        >>> error = Figure(name="error", metric="test/error", title="test error", unit="%")
        >>> results([error], [{"test/error": 4.0}, {"test/error": 2.0}], average_last=2)
        {'error': 3.0, 'error_last': 2.0}
    """
    found: dict[str, float] = {}
    for index, figure in enumerate(figures):
        last = metrics[-average_last:] if figure.averaged else metrics[-1:]
        values = [float(line[figure.metric]) for line in last if line.get(figure.metric) is not None]
        if not values:
            continue
        found[figure.name] = sum(values) / len(values)
        if index == 0:
            found[f"{figure.name}_last"] = values[-1]
    return found


# Configurations of earlier formats, read as the present one.
#
# A version reads the run folders of its own format and of the one before: reports, evaluation and prediction work, and
# the run can be used. It goes on with runs of its own format only, because draws and checkpoints may have changed.

CONFIG_FORMAT = 2
"""2, since 0.2.0: a configuration names its task and says what its figures are."""


def read_config(path: Path) -> dict[str, Any]:
    """The content of config.json in the terms of the present format; "format" keeps the one it was written in.

    Raises:
        ValueError: it is no configuration, or one of a format that this version does not know.
    """
    stored = read_verified(path)
    written = stored.get("format")
    if written == CONFIG_FORMAT and type(written) is int:
        return stored
    upgrade = _UPGRADES.get(written) if type(written) is int else None
    if upgrade is None:
        newer = type(written) is int and written > CONFIG_FORMAT
        remedy = "; a newer version of isda wrote it" if newer else ""
        raise ValueError(f"{path} must be a run's configuration of format {CONFIG_FORMAT}, got {written!r}{remedy}")
    try:
        return stored | upgrade(stored)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not the configuration of format {written} that it says it is: {error!r}"
        ) from error


def _from_1(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Format 1 knew classifiers alone, and what tables show of a run stood in the code."""
    semi = stored["labelled_per_batch"] is not None
    on = stored["evaluated_on"]
    top = [_figure("error_top5", on, "top-5 error", unit="%")] if len(stored["classes"]) > 5 else []
    figures = [
        _figure("error", on, "error", unit="%"),
        *top,
        _figure("nll", on, "negative log-likelihood", digits=3),
        _figure("calibration", on, "calibration error", unit="%"),
        {"name": "train_loss", "metric": "train/loss", "title": "training loss", "digits": 4, "averaged": False},
    ]
    held_out = stored["held_out"]
    return {
        "task": "semi-supervised" if semi else "classification",
        "figures": figures,
        "curves": [
            {"metric": "train/loss", "title": "Training loss", "unit": "loss", "logarithmic": True},
            {"metric": "strength", "title": "Strength λ of ISDA", "unit": "λ"},
        ],
        "baselines": ["cross-entropy", "supervised"],
        "of_method": ["labelled_per_batch"] if semi else [],
        "held_out_labels": held_out / stored["labels"] if semi else 0.0,
    }


def _figure(name: str, on: str, title: str, **further: Any) -> dict[str, Any]:
    # Whatever was measured on, the lines of metrics.jsonl called it test.
    return {"name": name, "metric": f"test/{name}", "title": f"{on} {title}"} | further


_UPGRADES: dict[int, Callable[[Mapping[str, Any]], dict[str, Any]]] = {1: _from_1}
"""What each earlier format lacks."""


NOT_DECISIVE = ("version", "asked", "chosen")
"""Fields that may differ between a run and its continuation."""

_AnyConfig = TypeVar("_AnyConfig", bound="RunConfig")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What the engine, tables and pages need to know of any run. The configuration of a task adds its own fields."""

    task: str
    """The task's name, see `isda.engine.find_task`."""
    data: str
    network: str
    method: str
    method_options: dict[str, Any] = field(default_factory=dict)
    seed: int
    scale: str
    epochs: int
    steps_per_epoch: int
    """Optimiser steps per epoch."""
    evaluate_every: int = 1
    average_last: int = 1
    """Figures are means over this many last epochs."""
    evaluated_on: str = "test"
    """What figures are measured on: "test", or "held-out" images."""
    figures: tuple[Figure, ...]
    """What is measured; methods are compared by the first."""
    curves: tuple[Curve, ...] = ()
    """What pages show over the epochs, beside the first figure."""
    baselines: tuple[str, ...] = ()
    """Methods that the others are compared to, wherever one of them is there."""
    asked: dict[str, Any] = field(default_factory=dict)
    """What the user asked for, of which all the rest follows."""
    chosen: tuple[str, ...] = ()
    """Fields that were chosen for each method by itself on held-out data: runs that differ in them are compared."""
    version: str = ""
    format: int = CONFIG_FORMAT
    """The one it was written in, see `isda.engine.config`."""

    of_method: ClassVar[tuple[str, ...]] = ()
    """Further fields that may differ between the methods of one comparison."""
    of_run: ClassVar[tuple[str, ...]] = ()
    """Further fields that may differ between all its runs, beside method and seed."""
    told: ClassVar[dict[str, str]] = {}
    """What to say of fields that differ and whose values would tell nobody anything."""

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    @property
    def identity(self) -> str:
        """A digest of all that decides what the run computes; checkpoints carry it."""
        decisive = {name: value for name, value in asdict(self).items() if name not in NOT_DECISIVE}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def evaluates(self, epoch: int) -> bool:
        """Whether figures are measured after an epoch (from 1): every few, and all that the result averages."""
        return epoch % self.evaluate_every == 0 or epoch > self.epochs - self.average_last

    def describe(self) -> str:
        """One line about the run."""
        return (
            f"{self.method} on {self.data}, {self.network}, {self.epochs} epochs ({self.scale} scale), seed {self.seed}"
        )

    def as_json(self) -> str:
        """The text of config.json."""
        apart = {"of_method": [*self.of_method, *self.chosen], "of_run": list(self.of_run)}
        return json_text(with_digest(asdict(self) | apart), indent=1) + "\n"

    @classmethod
    def read(cls: type[_AnyConfig], path: Path) -> _AnyConfig:
        """Read config.json; a ValueError names what is wrong with it."""
        return cls.from_stored(read_config(path), path)

    @classmethod
    def from_stored(cls: type[_AnyConfig], stored: Mapping[str, Any], path: Path) -> _AnyConfig:
        """A configuration from what `read_config` found at ``path``, which messages name."""
        known = {f.name: f for f in fields(cls)}
        missing = [name for name, f in known.items() if name not in stored and not _has_default(f)]
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}")
        check_types(cls, stored, path)
        data = stored.get("asked", {}).get("data")
        if not isinstance(data, str | None):
            raise ValueError(f"{path} must have the name of a data set as asked['data'], got {data!r}")
        values = {name: _tuples(stored[name]) for name in known if name in stored}
        try:
            values["figures"] = tuple(Figure(**one) for one in stored["figures"])
            values["curves"] = tuple(Curve(**one) for one in stored.get("curves", ()))
        except TypeError as error:
            raise ValueError(f"{path} describes its figures in a way that is not known here: {error}") from error
        for one in (*stored["figures"], *stored.get("curves", ())):
            check_types(Figure if "name" in one else Curve, one, path)
        return cls(**values)

    def differences(self, other: RunConfig) -> dict[str, tuple[Any, Any]]:
        """Settings in which two configurations differ: name -> (mine, the other's)."""
        mine, theirs = asdict(self), asdict(other)
        names = [name for name in mine | theirs if name not in NOT_DECISIVE]
        pairs = {name: (mine.get(name), theirs.get(name)) for name in names}
        return {name: (one, two) for name, (one, two) in pairs.items() if one != two}


_PLAIN: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, NoneType),
    "str | HubOrFile | None": (str, NoneType),
    "int": (int,),
    "bool": (bool,),
    "float": (float, int),
    "int | None": (int, NoneType),
    "float | None": (float, int, NoneType),
    "dict[str, Any]": (dict,),
    "dict[str, str]": (dict,),
    "tuple[str, ...]": (list,),
    "tuple[int, ...]": (list,),
    "tuple[float, ...]": (list,),
    "tuple[int, int] | None": (list, NoneType),
}
"""What JSON has for a field, by its annotation."""

_ELEMENTS: dict[str, tuple[type, ...]] = {
    "tuple[str, ...]": (str,),
    "tuple[int, ...]": (int,),
    "tuple[float, ...]": (float, int),
    "tuple[int, int] | None": (int,),
    "dict[str, str]": (str,),
}
"""What its lists and objects hold."""


def check_types(kind: type[Any], stored: Mapping[str, Any], path: Path) -> None:
    """Raise a ValueError for the first field of a dataclass that is stored as something else than it is."""
    for f in fields(kind):
        if f.name not in stored:
            continue
        annotation, value = str(f.type), stored[f.name]
        expected = (str, NoneType) if annotation.startswith("Literal[") else _PLAIN.get(annotation)
        if expected and type(value) not in expected:
            raise ValueError(f"{path} must have {expected[0].__name__} as {f.name}, got {value!r}")
        held = _ELEMENTS.get(annotation)
        if held and value is not None:
            members = list(value.values()) if isinstance(value, dict) else value
            wrong_length = "int, int" in annotation and len(members) != 2
            if wrong_length or any(type(member) not in held for member in members):
                raise ValueError(f"{path} must have {annotation} as {f.name}, got {value!r}")


def _has_default(f: Field[Any]) -> bool:
    return f.default is not MISSING or f.default_factory is not MISSING


def _tuples(value: Any) -> Any:
    """JSON has lists where we have tuples."""
    return tuple(value) if isinstance(value, list) else value
