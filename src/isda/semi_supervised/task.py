"""Semi-supervised classification as a task of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from isda.classification.config import Config
from isda.classification.resolving import choose_network
from isda.classification.settings import Settings as ClassificationSettings
from isda.classification.split import Evaluation
from isda.classification.task import Classification
from isda.data import DataSet, ZCAWhitening
from isda.data.augment import Compose
from isda.engine.folder.config import RunConfig
from isda.engine.grammar import option_types, split_method
from isda.engine.settings import RunSettings
from isda.engine.task import HeldOut, Job, Place
from isda.errors import of_type
from isda.semi import NAMES
from isda.semi_supervised.config import SemiConfig
from isda.semi_supervised.job import SemiSupervisedJob
from isda.semi_supervised.method import create_method
from isda.semi_supervised.normalisation import WHITENING_FILE, normaliser_for
from isda.semi_supervised.options import declared_options, grid
from isda.semi_supervised.resolving import resolve
from isda.semi_supervised.settings import Settings
from isda.semi_supervised.split import split_data

__all__ = ["SemiSupervisedClassification"]

HELD_OUT_LABELS = 0.25
"""The share of the labelled images by which the paper chooses settings."""


class SemiSupervisedClassification(Classification):
    """Images of which few have labels."""

    name = "semi-supervised"
    settings_type: ClassVar[type[RunSettings]] = Settings
    config_type: ClassVar[type[RunConfig]] = SemiConfig

    def methods(self) -> Sequence[str]:
        """The paper's, each with ISDA and without."""
        return NAMES

    def resolve(self, settings: ClassificationSettings, data: DataSet) -> SemiConfig:
        """See `isda.semi_supervised.resolving`."""
        if not isinstance(settings, Settings):
            raise ValueError(
                f"settings must be isda.train.SemiSettings for method {settings.method}, got {type(settings).__name__}"
            )
        return resolve(settings, data)

    def start(self, config: Config, data: DataSet, place: Place) -> Job:
        """The run, before its first step."""
        config = of_type(config, SemiConfig)
        network = self.network_for(config, place)
        method = create_method(config, network)
        method.to(place.processes.device)
        return SemiSupervisedJob(config, data, network, method, place)

    def training(self, config: Config, data: DataSet) -> Tensor:
        """(N,) the training images that a run has learnt from with their labels."""
        return split_data(of_type(config, SemiConfig), data).labelled

    def evaluation(self, config: Config, data: DataSet) -> Evaluation:
        """What a run is judged by."""
        return split_data(of_type(config, SemiConfig), data).evaluation

    def evaluation_pipeline(self, config: Config, folder: Path) -> Compose:
        """The run's own normalisation; a whitening is kept in its folder."""
        config = of_type(config, SemiConfig)
        whiten = None
        if config.normalisation == "zca":
            whiten = ZCAWhitening.read(folder / WHITENING_FILE, config.data_digest)
        return Compose(normaliser_for(config, whiten))

    def options(self, method: str) -> dict[str, type]:
        """What may follow its colon."""
        return {
            name: kind
            for declared in declared_options(split_method(method)[0])
            for name, kind in option_types(declared).items()
        }

    def grid(self, settings: ClassificationSettings, data: DataSet) -> dict[str, tuple[Any, ...]]:
        """The paper's for lambda_0 and eta_1; ours for eta_2, around what the method's publication has."""
        resolved = self.resolve(settings, data)
        return grid(resolved.method, resolved.method_options, choose_network(settings, data)[1])

    def held_out(self, settings: ClassificationSettings, data: DataSet) -> HeldOut:
        """25% of the labelled images, or what the user says."""
        settings = of_type(settings, Settings)
        if settings.held_out:
            return super().held_out(settings, data)
        share = settings.held_out_labels or HELD_OUT_LABELS
        told = f"{share:.0%} of {settings.labels} labelled images"
        return HeldOut(replace(settings, held_out_labels=share), replace(settings, held_out_labels=None), told)
