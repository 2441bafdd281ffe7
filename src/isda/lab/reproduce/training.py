"""One training of the paper: a network, a data set and a method with all its seeds, its scale and its outcome."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from isda.lab.engine.options import given_options
from isda.lab.engine.run_records import RunRecord, read_run
from isda.lab.engine.settings import RunSettings
from isda.lab.reproduce.workload import Work


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The size of a reproduction; the limits do not apply at the paper's scale."""

    name: str
    description: str
    seeds: int
    full: bool = False
    """Whether it is the paper's scale."""
    images: int = 0
    """Training images."""
    epochs: int = 0
    batch_size: int = 0
    """Most samples per step."""
    multiply_adds: float = 0.0
    """Limit for one image in one forward pass: networks are narrowed to it."""
    trials: int | None = None
    """Most values of a setting to try; by default all of the paper's grid."""
    stand_ins: bool = False
    """Whether digits of scikit-learn replace data sets that are not available."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the command changes in all trainings that have them, such as precision."""

    @property
    def sentence(self) -> str:
        """Name, description and changed settings."""
        changed = "".join(f", {name}={value}" for name, value in self.changes.items())
        return f"Scale {self.name}: {self.description}{changed}."

    @property
    def options(self) -> str:
        """As `isda reproduce` takes them."""
        words = {"scale": self.name, **self.changes}
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in words.items())


SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(name="paper", description="the paper's networks, images and epochs", seeds=5, full=True),
        Scale(
            name="small",
            description=(
                "2,000 images (all of ImageNet, Cityscapes and COCO), 10 epochs, classifiers narrowed to 6 million "
                "multiply-adds: for an hour or two on a CPU"
            ),
            seeds=3,
            images=2000,
            epochs=10,
            batch_size=32,
            multiply_adds=6e6,
            trials=3,
        ),
        Scale(
            name="smoke",
            description=(
                "100 images (all of ImageNet, Cityscapes and COCO), 2 epochs, classifiers of a million multiply-adds: "
                "tests that everything runs, no evidence"
            ),
            seeds=2,
            images=100,
            epochs=2,
            batch_size=20,
            multiply_adds=1e6,
            trials=2,
            stand_ins=True,
        ),
    )
}
"""By name, the largest first."""


class ScaledSettings(NamedTuple):
    """The settings of a training at a scale."""

    settings: RunSettings
    differences: tuple[str, ...]
    """Differences from the paper in addition to the scale, as sentences without a full stop."""


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """Runs that differ only in their seed, after a search on held-out data if the training is tuned.

    Tables share trainings of the same name.
    """

    task: ClassVar[str]
    settings: Any
    """At the paper's scale, method included."""
    tuned: bool = False
    """Whether the method's published grid is searched on held-out data, as in the paper."""
    search: tuple[str, ...] = ()
    """What is searched in place of the published grid, as `isda tune --search` takes it."""
    chosen_from: Training | None = None
    """A tuned training whose chosen options of the method this one takes."""
    dependencies: Mapping[str, Training] = field(default_factory=dict)
    """Trainings to run before, by the setting that takes the run folder of their first seed."""

    @property
    def checkpoints(self) -> int:
        """Checkpoints that the first seed keeps over the whole run for an analysis; 0 keeps the usual ones."""
        return 0

    @property
    def name(self) -> str:
        """Name of the folder: data, network, method, other settings and dependencies."""
        given = self.settings.given()
        words = [str(given.pop(key)) for key in ("data", "network", "method") if key in given]
        words += [f"{key}={value}" for key, value in given.items()]
        words += [f"{key}={training.name}" for key, training in self.dependencies.items()]
        words += [f"search={word.partition('=')[0]}" for word in self.search]
        words += [f"chosen={self.chosen_from.method}"] if self.chosen_from is not None else []
        return re.sub(r"[^\w.=+-]+", "-", "-".join(words))

    @property
    def required(self) -> list[Training]:
        """The trainings to run before."""
        return [*self.dependencies.values(), *([] if self.chosen_from is None else [self.chosen_from])]

    @property
    def method(self) -> str:
        """As `isda train --method` takes it."""
        return str(self.settings.method)

    def folder_name(self, scale: Scale) -> str:
        """The folder of its runs: the name, and the settings that the command changes."""
        changed = (f"-{name}={value}" for name, value in scale.changes.items() if hasattr(self.settings, name))
        return self.name + "".join(changed)

    def at(self, scale: Scale, root: Path | None) -> ScaledSettings:
        """The settings at a scale, with available data and what the command changes."""
        settings, differences = ScaledSettings(self.settings, ()) if scale.full else self.scaled(scale, root)
        changes = {name: value for name, value in scale.changes.items() if hasattr(settings, name)}
        return ScaledSettings(replace(settings, **changes), differences)

    def grid(self) -> Mapping[str, Sequence[Any]]:
        """What the method's search chooses from, by setting; none by default."""
        return {}

    def trials(self, scale: Scale) -> int:
        """How many runs the search on held-out data takes; known without data."""
        if not self.tuned:
            return 0
        given = given_options(self.method)
        sizes = [len(values) for name, values in self.grid().items() if name not in given]
        if self.search:
            sizes = [len(word.partition("=")[2].split(",")) for word in self.search]
        points = math.prod(sizes)
        return points if scale.trials is None else min(points, scale.trials)

    @abstractmethod
    def scaled(self, scale: Scale, root: Path | None) -> ScaledSettings:
        """The settings at a scale below the paper's."""

    @abstractmethod
    def work(self, scale: Scale, root: Path | None) -> Work:
        """Of the forward and backward passes of one run, without evaluation."""

    def with_folders(self, settings: RunSettings, folders: Mapping[str, Path]) -> RunSettings:
        """The settings with the run folders of dependencies, by the name of the setting."""
        paths: dict[str, Any] = {key: str(folder.absolute()) for key, folder in folders.items()}
        return replace(settings, **paths)


@dataclass(frozen=True)
class TrainingOutcome:
    """The result of a training at a scale."""

    training: Training
    folders: dict[int, Path] = field(default_factory=dict)
    """Finished runs by seed."""
    differences: tuple[str, ...] = ()
    """From the paper, in addition to the scale."""
    chosen: str = ""
    """The method with the chosen settings; empty if nothing was tuned."""
    notes: tuple[str, ...] = ()
    """Choices at the edge of the grid."""
    problems: tuple[str, ...] = ()
    """Why runs are missing."""

    @cached_property
    def runs(self) -> dict[int, RunRecord]:
        """Records of the finished runs by seed."""
        return {seed: read_run(folder) for seed, folder in self.folders.items()}

    def values(self, figure: str) -> dict[int, float]:
        """A metric of the runs that have it, by seed."""
        results = {seed: run.result for seed, run in self.runs.items() if run.result is not None}
        return {seed: float(result[figure]) for seed, result in results.items() if result.get(figure) is not None}


Outcomes = Mapping[str, TrainingOutcome]
"""By the name of the training."""
