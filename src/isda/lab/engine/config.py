"""Run configurations: the resolved settings in config.json, and the figures and curves of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from isda.lab.engine.settings import AUTO, RunSettings, TrainingSettings
from isda.lab.files import json_text, read_json

if TYPE_CHECKING:
    import torch


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
        >>> result_figures([error], [{"test/error": 4.0}, {"test/error": 2.0}], average_last=2)
        {'error': 3.0, 'error_last': 2.0}
    """
    result: dict[str, float] = {}
    for index, figure in enumerate(figures):
        last = metrics[-average_last:] if figure.averaged else metrics[-1:]
        values = [float(line[figure.metric]) for line in last if line.get(figure.metric) is not None]
        if not values:
            continue
        result[figure.name] = sum(values) / len(values)
        if index == 0:
            result[f"{figure.name}_last"] = values[-1]
    return result


CONFIG_FORMAT = 3
"""3: a configuration holds the settings of its task under their names."""


def read_config(path: Path) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        ValueError: it is no configuration, or one of another format.
    """
    stored = read_json(path)
    written = stored.get("format")
    if type(written) is int and written == CONFIG_FORMAT:
        return stored
    remedy = ""
    if type(written) is int:
        remedy = f"; a{' newer' if written > CONFIG_FORMAT else 'n earlier'} version of isda wrote it"
    raise ValueError(f"{path} must be a run's configuration of format {CONFIG_FORMAT}, got {written!r}{remedy}")


NOT_DECISIVE = ("version", "settings", "chosen", "curves")
"""Fields that may differ between a run and its continuation."""

_AnyConfig = TypeVar("_AnyConfig", bound="RunConfig")


@dataclass(frozen=True, kw_only=True)
class RunConfig(RunSettings):
    """The settings of a run with nothing left AUTO, and what the engine, tables and pages need to know of it.

    The configuration of a task inherits from its settings first, then from this class, and adds facts of its data.
    """

    task: str
    """The task's name, see `isda.lab.engine.find_task`."""
    method_options: dict[str, Any] = field(default_factory=dict)
    steps_per_epoch: int
    """Optimiser steps per epoch."""
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
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings that the user has given, of which all the rest follows."""
    chosen: tuple[str, ...] = ()
    """Fields that were chosen for each method by itself on held-out data: runs that differ in them are compared."""
    version: str = ""
    format: int = CONFIG_FORMAT

    of_method: ClassVar[tuple[str, ...]] = ()
    """Further fields that may differ between the methods of one comparison."""
    of_run: ClassVar[tuple[str, ...]] = ()
    """Further fields that may differ between all its runs, beside method and seed."""
    change_messages: ClassVar[dict[str, str]] = {}
    """Messages for fields such as digests, whose values say nothing to a user when they differ."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if "auto" in f.metadata and getattr(self, f.name) is AUTO:
                if f.metadata["auto"] is AUTO:
                    raise TypeError(f"a configuration must have a value for {f.name}")
                object.__setattr__(self, f.name, f.metadata["auto"])

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.epochs * self.steps_per_epoch

    @property
    def identity(self) -> str:
        """All that decides what the run computes, as text."""
        decisive = {name: value for name, value in asdict(self).items() if name not in NOT_DECISIVE}
        return json.dumps(decisive, sort_keys=True)

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
        elsewhere = {f.name for f in fields(self) if "stored_in" in f.metadata}
        values = {name: value for name, value in asdict(self).items() if name not in elsewhere}
        values |= {"of_method": [*self.of_method, *self.chosen], "of_run": list(self.of_run)}
        return json_text(values, indent=1) + "\n"

    @classmethod
    def read(cls: type[_AnyConfig], path: Path) -> _AnyConfig:
        """Read config.json; a ValueError names what is wrong with it."""
        return cls.from_stored(read_config(path), path)

    @classmethod
    def from_stored(cls: type[_AnyConfig], stored: Mapping[str, Any], path: Path) -> _AnyConfig:
        """A configuration from what `read_config` found at ``path``, which messages name."""
        known = {f.name: f for f in fields(cls)}
        missing = [name for name, f in known.items() if name not in stored and _required(f)]
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}")
        values = {name: _tuples(stored[name]) for name in known if name in stored}
        try:
            values["figures"] = tuple(Figure(**figure) for figure in stored["figures"])
            values["curves"] = tuple(Curve(**curve) for curve in stored.get("curves", ()))
        except TypeError as error:
            raise ValueError(f"{path} describes its figures in a way that is not known here: {error}") from error
        return cls(**values)

    def differences(self, other: RunConfig) -> dict[str, tuple[Any, Any]]:
        """Settings in which two configurations differ: name -> (mine, the other's)."""
        mine, theirs = asdict(self), asdict(other)
        names = [name for name in mine | theirs if name not in NOT_DECISIVE]
        pairs = {name: (mine.get(name), theirs.get(name)) for name in names}
        return {name: (one, two) for name, (one, two) in pairs.items() if one != two}


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(TrainingSettings, RunConfig):
    """How a network is trained: settings, and what recipes alone decide."""

    optimiser: str = "sgd"
    """One of `isda.lab.engine.trainer.OPTIMISERS`."""
    momentum: float = 0.9
    milestones: tuple[int, ...] = ()
    """Epochs after which the learning rate falls."""
    lr_factor: float = 0.1
    warm_up_steps: int = 0
    warm_up_from: float | None = None
    """The share of the learning rate that the first step of the warm-up has; one step's share if None."""

    @property
    def samples_per_step(self) -> int:
        """Samples that the loss of a step is a mean over, in all processes together."""
        return self.batch_size

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        import torch

        return torch.float64 if self.precision == "float64" else torch.float32


def _required(f: Field[Any]) -> bool:
    return "auto" in f.metadata or (f.default is MISSING and f.default_factory is MISSING)


def _tuples(value: Any) -> Any:
    """JSON has lists where we have tuples."""
    return tuple(value) if isinstance(value, list) else value
