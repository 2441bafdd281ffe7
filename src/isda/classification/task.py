"""Classification as a task of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from isda.classification.config import Config
from isda.classification.foreseeing import create_network
from isda.classification.job import ClassificationJob
from isda.classification.methods import METHODS, find_method
from isda.classification.pipelines import evaluation_pipeline
from isda.classification.pretraining import begin
from isda.classification.resolving import choose_network, resolve
from isda.classification.settings import Settings
from isda.classification.split import Evaluation, split_data
from isda.data import DataSet, load
from isda.data.augment import Compose
from isda.engine.folder.config import RunConfig
from isda.engine.grammar import option_types, split_method
from isda.engine.settings import RunSettings
from isda.engine.task import HeldOut, Job, Place, Task
from isda.networks import Network

__all__ = ["Classification"]

HELD_OUT = 5000
"""The training images by which the paper chooses settings, on CIFAR."""
LARGEST_SHARE = 5
"""Ours: of a small set at most a fifth."""


class Classification(Task):
    """Images with labels.

    Args:
        network: to train instead of the one that the configuration names, e.g. one with pretrained weights.
    """

    name = "classification"
    settings_type: ClassVar[type[RunSettings]] = Settings
    config_type: ClassVar[type[RunConfig]] = Config

    def __init__(self, network: Network | None = None) -> None:
        self._network = network

    def methods(self) -> Sequence[str]:
        """Supervised ones."""
        return tuple(METHODS)

    def load(self, data: str | None, root: Path | None = None) -> DataSet:
        """The data set of a name, a folder or a file; scikit-learn's digits by default."""
        return load(data or "digits", root)

    def resolve(self, settings: Settings, data: DataSet) -> Config:
        """See `isda.classification.resolving`."""
        # Settings of a task that has further ones: ignored, they would promise what a run does not do.
        foreign = settings.asked().keys() - {f.name for f in fields(self.settings_type)}
        if foreign:
            raise ValueError(f"{min(foreign)} is not a setting of method {settings.method or 'isda'}")
        return resolve(settings, data)

    def start(self, config: Config, data: DataSet, place: Place) -> Job:
        """The run, before its first step."""
        network = self.network_for(config, place)
        method = find_method(config.method).create(network, config)
        method.to(place.processes.device)
        return ClassificationJob(config, data, network, method, place, self.evaluation_pipeline(config, place.folder))

    def network_for(self, config: Config, place: Place) -> Network:
        """The network of a configuration with its initial weights, on its device."""
        torch.manual_seed(config.seed)
        network = begin(self._network or create_network(config), config)
        network.to(device=place.processes.device, dtype=config.dtype)
        if config.channels_last:
            network.to(memory_format=torch.channels_last)
        return network

    def training(self, config: Config, data: DataSet) -> Tensor:
        """(N,) the training images that a run has learnt from with their labels."""
        return split_data(config, data)[0]

    def evaluation(self, config: Config, data: DataSet) -> Evaluation:
        """What a run is judged by."""
        return split_data(config, data)[1]

    def evaluation_pipeline(self, config: Config, folder: Path) -> Compose:
        """From the images that a run is judged by, or new ones, to what its network sees."""
        return evaluation_pipeline(config.augment, config.mean, config.std, config.seen)

    def options(self, method: str) -> dict[str, type]:
        """What may follow its colon."""
        return option_types(find_method(split_method(method)[0]).Options)

    def grid(self, settings: Settings, data: DataSet) -> dict[str, tuple[Any, ...]]:
        """What the method declares."""
        name, _ = split_method(settings.method or "isda")
        return find_method(name).grid_for(choose_network(settings, data)[1])

    def held_out(self, settings: Settings, data: DataSet) -> HeldOut:
        """5,000 training images, or a fifth of a small set, unless the user says how many."""
        total = len(data.y_train)
        held = settings.held_out or max(1, min(HELD_OUT, total // LARGEST_SHARE))
        told = f"{held:,} of {total:,} training images"
        labels = settings.labels
        if labels is not None and labels > total - held > 0:
            labels = total - held
            told += f", which leaves {labels:,} labels to learn from"
        choosing = replace(settings, held_out=held, labels=labels)
        return HeldOut(choosing, replace(settings, held_out=None), told)
