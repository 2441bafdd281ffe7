"""One training of the paper: a network, a data set and a method, with all its seeds, at any scale."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from isda.engine.settings import RunSettings
from isda.reproduce.scale import Scale
from isda.reproduce.work import Work

__all__ = ["Shrunk", "Training"]


class Shrunk(NamedTuple):
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
        said = self.settings.asked()
        words = [str(said.pop(key)) for key in ("data", "network", "method") if key in said]
        words += [f"{key}={value}" for key, value in said.items()]
        words += [f"checkpoints={self.checkpoints}"] if self.checkpoints else []
        words += [f"{key}={need.name}" for key, need in self.needs.items()]
        return re.sub(r"[^\w.=+-]+", "-", "-".join(words))

    @property
    def method(self) -> str:
        """As `isda train --method` takes it."""
        return str(self.settings.method)

    def at(self, scale: Scale, root: Path | None) -> Shrunk:
        """The settings at a scale, with the data that is there."""
        return Shrunk(self.settings, ()) if scale.full else self.shrunk(scale, root)

    @abstractmethod
    def shrunk(self, scale: Scale, root: Path | None) -> Shrunk:
        """The settings at a scale that leaves something out."""

    @abstractmethod
    def work(self, scale: Scale, root: Path | None) -> Work:
        """Of one run: forward and backward passes over its training images; evaluation comes on top."""

    def with_folders(self, settings: RunSettings, folders: Mapping[str, Path]) -> RunSettings:
        """The settings with the run folders of what is needed, by the name of the setting."""
        found: dict[str, Any] = {key: str(folder.absolute()) for key, folder in folders.items()}
        return replace(settings, **found)
