"""What a run does, all of it: the resolved settings as they stand in the run folder's config.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, TypeVar

from isda.engine.folder.figures import Curve, Figure
from isda.engine.folder.formats import FORMAT, read_config
from isda.engine.folder.seal import json_text, sealed

__all__ = ["RunConfig", "check_types"]

NOT_DECISIVE = ("version", "asked", "chosen")
"""Fields that may differ between a run and its continuation."""

_Config = TypeVar("_Config", bound="RunConfig")


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
    format: int = FORMAT
    """The one it was written in, see `isda.engine.folder.formats`."""

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
        return json_text(sealed(asdict(self) | apart), indent=1) + "\n"

    @classmethod
    def read(cls: type[_Config], path: Path) -> _Config:
        """Read config.json; a ValueError names what is wrong with it."""
        return cls.from_stored(read_config(path), path)

    @classmethod
    def from_stored(cls: type[_Config], stored: Mapping[str, Any], path: Path) -> _Config:
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
