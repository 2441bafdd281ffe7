"""Generation of images as a task of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch

from isda.data import DataSet, load
from isda.engine.folder.config import RunConfig
from isda.engine.settings import RunSettings
from isda.engine.task import Job, Place, Task
from isda.generative.config import Config
from isda.generative.foreseeing import create_players
from isda.generative.job import GenerationJob
from isda.generative.methods import METHODS, find_method
from isda.generative.resolving import resolve
from isda.generative.settings import Settings
from isda.generators import TASK

__all__ = ["Generation"]


class Generation(Task):
    """A generator and a discriminator that learn from each other."""

    name = TASK
    settings_type: ClassVar[type[RunSettings]] = Settings
    config_type: ClassVar[type[RunConfig]] = Config

    def methods(self) -> Sequence[str]:
        """The paper's four."""
        return tuple(METHODS)

    def load(self, data: str | None, root: Path | None = None) -> DataSet:
        """The data set of a name or a file; scikit-learn's digits by default."""
        return load(data or "digits", root)

    def resolve(self, settings: Settings, data: DataSet) -> Config:
        """See `isda.generative.resolving`."""
        return resolve(settings, data)

    def start(self, config: Config, data: DataSet, place: Place) -> Job:
        """The run, before its first step."""
        kind = find_method(config.method)
        torch.manual_seed(config.seed)
        players = create_players(config, kind).to(device=place.processes.device, dtype=config.dtype)
        method = kind.create(players, config).to(place.processes.device)
        return GenerationJob(config, data, players, method, place)
