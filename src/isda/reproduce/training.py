"""One training of the paper: a network, a data set and a method with all its seeds, its scale and its outcome."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from isda.engine.run_records import RunRecord, read_run
from isda.engine.settings import RunSettings
from isda.reproduce.workload import Work


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a reproduction leaves out; at the paper's own scale nothing is, and the limits mean nothing."""

    name: str
    told: str
    """For whoever reads the numbers."""
    seeds: int
    full: bool = False
    """Whether it is the paper's."""
    images: int = 0
    """Training images."""
    epochs: int = 0
    batch_size: int = 0
    """At most so many samples per step."""
    multiply_adds: float = 0.0
    """Most of one image in one forward pass: networks are narrowed until they fit."""
    trials: int | None = None
    """Values of a setting that are tried, of those that the paper tries."""

    stand_ins: bool = False
    """Whether data that ships with a dependency stands in for what is not there."""


SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(name="paper", told="the paper's networks, images and epochs", seeds=5, full=True),
        Scale(
            name="small",
            told="2,000 images, 10 epochs, networks narrowed to 6 million multiply-adds: for an hour or two on a CPU",
            seeds=3,
            images=2000,
            epochs=10,
            batch_size=32,
            multiply_adds=6e6,
            trials=3,
        ),
        Scale(
            name="smoke",
            told="100 images, 2 epochs, networks of a million multiply-adds: a trial of the machinery, no evidence",
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
    """What is not as in the paper beside what the scale says of all trainings, as sentences without a full stop."""


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """A row of runs that differ in their seed alone, or several before a setting is chosen on held-out data.

    Trainings of different tables that are the same are made once: they are known by their name.
    """

    task: ClassVar[str]
    settings: Any
    """At the paper's scale, method included."""
    tuned: bool = False
    """Whether the options in the published grid of the method are chosen on held-out data, as in the paper."""
    needs: Mapping[str, Training] = field(default_factory=dict)
    """Settings that name the run folder of another training, which is made before: that of its first seed."""
    checkpoints: int = 0
    """How many checkpoints are kept of the whole of a run, where an analysis looks at them."""

    @property
    def name(self) -> str:
        """The folder: data, network, method, and what else is said, the trainings that it needs included."""
        said = self.settings.given()
        words = [str(said.pop(key)) for key in ("data", "network", "method") if key in said]
        words += [f"{key}={value}" for key, value in said.items()]
        words += [f"checkpoints={self.checkpoints}"] if self.checkpoints else []
        words += [f"{key}={need.name}" for key, need in self.needs.items()]
        return re.sub(r"[^\w.=+-]+", "-", "-".join(words))

    @property
    def method(self) -> str:
        """As `isda train --method` takes it."""
        return str(self.settings.method)

    def at(self, scale: Scale, root: Path | None) -> ScaledSettings:
        """The settings at a scale, with the data that is there."""
        return ScaledSettings(self.settings, ()) if scale.full else self.shrunk(scale, root)

    @abstractmethod
    def shrunk(self, scale: Scale, root: Path | None) -> ScaledSettings:
        """The settings at a scale that leaves something out."""

    @abstractmethod
    def work(self, scale: Scale, root: Path | None) -> Work:
        """Of one run: forward and backward passes over its training images; evaluation comes on top."""

    def with_folders(self, settings: RunSettings, folders: Mapping[str, Path]) -> RunSettings:
        """The settings with the run folders of what is needed, by the name of the setting."""
        found: dict[str, Any] = {key: str(folder.absolute()) for key, folder in folders.items()}
        return replace(settings, **found)


@dataclass(frozen=True)
class TrainingOutcome:
    """The result of a training at a scale."""

    training: Training
    folders: dict[int, Path] = field(default_factory=dict)
    """Finished runs by seed."""
    differences: tuple[str, ...] = ()
    """From the paper, beside the scale."""
    chosen: str = ""
    """The method with the settings that were chosen; empty where nothing was."""
    notes: tuple[str, ...] = ()
    """Where a choice is at the edge of what was tried."""
    problems: tuple[str, ...] = ()
    """Why runs are missing."""

    @cached_property
    def runs(self) -> dict[int, RunRecord]:
        """The finished runs, read."""
        return {seed: read_run(folder) for seed, folder in self.folders.items()}

    def values(self, figure: str) -> dict[int, float]:
        """A figure of the runs that have it, by seed."""
        found = {seed: run.result for seed, run in self.runs.items() if run.result is not None}
        return {seed: float(result[figure]) for seed, result in found.items() if result.get(figure) is not None}
