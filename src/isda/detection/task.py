"""Detection as a task of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import torch

from isda.data.coco import CocoData, load
from isda.detection.config import Config
from isda.detection.initialising import create_detector, initialise
from isda.detection.job import DetectionJob
from isda.detection.method import METHODS, DetectionMethod
from isda.detection.resolving import resolve
from isda.detection.settings import Settings
from isda.engine.folder.config import RunConfig
from isda.engine.named_method import find_named
from isda.engine.settings import RunSettings
from isda.engine.task import Job, Place, Task
from isda.networks.detection import Detector

__all__ = ["Detection"]


class Detection(Task):
    """Images with boxes and masks of objects."""

    name = "detection"
    settings_type: ClassVar[type[RunSettings]] = Settings
    config_type: ClassVar[type[RunConfig]] = Config

    def methods(self) -> Sequence[str]:
        """What can be minimised."""
        return tuple(METHODS)

    def load(self, data: str | None, root: Path | None = None) -> CocoData:
        """A folder in COCO's format; that of the name coco by default."""
        return load(data or "coco", root)

    def resolve(self, settings: Settings, data: CocoData) -> Config:
        """See `isda.detection.resolving`."""
        return resolve(settings, data)

    def start(self, config: Config, data: CocoData, place: Place) -> Job:
        """The run, before its first step."""
        network = self.network_for(config, place)
        kind = find_named(config.method, METHODS, DetectionMethod)  # type: ignore[type-abstract]
        method = kind.create(network, config)
        return DetectionJob(config, data, network, method.to(place.processes.device), place)

    def network_for(self, config: Config, place: Place) -> Detector:
        """The network of a configuration with its initial weights, on its device."""
        torch.manual_seed(config.seed)
        network = create_detector(config)
        initialise(network, config)
        network.to(device=place.processes.device, dtype=config.dtype)
        if config.channels_last:
            network.to(memory_format=torch.channels_last)
        return network
