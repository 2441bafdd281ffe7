"""Semantic segmentation as a task of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from isda.data.segmentation import SegmentationData, load
from isda.devices import on_host
from isda.engine.folder.config import RunConfig
from isda.engine.grammar import option_types, split_method
from isda.engine.settings import RunSettings
from isda.engine.task import HeldOut, Job, Place, Task
from isda.segmentation.config import Config
from isda.segmentation.foreseeing import create_network
from isda.segmentation.job import SegmentationJob
from isda.segmentation.methods import METHODS, find_method
from isda.segmentation.recipes import recipe_for
from isda.segmentation.resolving import resolve
from isda.segmentation.settings import Settings

__all__ = ["Segmentation"]


class Segmentation(Task):
    """Images whose every pixel has a class."""

    name = "segmentation"
    settings_type: ClassVar[type[RunSettings]] = Settings
    config_type: ClassVar[type[RunConfig]] = Config

    def methods(self) -> Sequence[str]:
        """Cross-entropy, and ISDA with either bound."""
        return tuple(METHODS)

    def load(self, data: str | None, root: Path | None = None) -> SegmentationData:
        """The data set of a name or a folder."""
        if data is None:
            raise ValueError("data must be cityscapes, camvid or a folder of images and label PNGs, got nothing")
        return load(data, root)

    def resolve(self, settings: Settings, data: SegmentationData) -> Config:
        """See `isda.segmentation.resolving`."""
        return resolve(settings, data)

    def start(self, config: Config, data: SegmentationData, place: Place) -> Job:
        """The run, before its first step."""
        processes = place.processes
        torch.manual_seed(config.seed)
        network = create_network(config, config.pretrained or None)
        if config.sync_batch_norm and processes.world > 1:
            if on_host(processes.device):
                raise ValueError("sync_batch_norm needs a GPU for each process, got processes on the CPU")
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        network.to(device=processes.device, dtype=config.dtype)
        if config.channels_last:
            network.to(memory_format=torch.channels_last)
        method = find_method(config.method).create(network, config)
        method.to(processes.device)
        return SegmentationJob(config, data, network, method, place)

    def options(self, method: str) -> dict[str, type]:
        """What may follow its colon."""
        return option_types(find_method(split_method(method)[0]).Options)

    def grid(self, settings: Settings, data: SegmentationData) -> dict[str, tuple[Any, ...]]:
        """What the method declares."""
        return find_method(split_method(settings.method or "isda")[0]).grid_for(recipe_for(1))

    def held_out(self, settings: Settings, data: SegmentationData) -> HeldOut:
        """The validation part; the final runs are judged by the test part, where it has labels."""
        if not data.validation.labelled:
            raise ValueError(f"settings are chosen by a validation part with labels, which {data.name} does not have")
        judging = settings.evaluate_on or ("test" if data.part("test").labelled else "validation")
        told = f"the {len(data.validation):,} images of the validation part"
        if judging == "validation":
            told += ", by which the final runs are judged too: their figures are a little too good"
        return HeldOut(replace(settings, evaluate_on="validation"), replace(settings, evaluate_on=judging), told)
