"""Semi-supervised classification as a task of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from isda.classification.config import Config
from isda.classification.settings import Settings as ClassificationSettings
from isda.classification.split import Evaluation
from isda.classification.task import Classification
from isda.data import DataSet, ZCAWhitening
from isda.data.augment import Compose
from isda.engine.folder.config import RunConfig
from isda.engine.settings import RunSettings
from isda.engine.task import Job, Place
from isda.semi import NAMES
from isda.semi_supervised.config import SemiConfig
from isda.semi_supervised.job import SemiSupervisedJob
from isda.semi_supervised.method import create_method
from isda.semi_supervised.normalisation import WHITENING_FILE, normaliser_for
from isda.semi_supervised.resolving import resolve
from isda.semi_supervised.settings import Settings
from isda.semi_supervised.split import split_data

__all__ = ["SemiSupervisedClassification"]


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
        assert isinstance(config, SemiConfig)
        network = self.network_for(config, place)
        method = create_method(config, network)
        method.to(place.processes.device)
        return SemiSupervisedJob(config, data, network, method, place)

    def evaluation(self, config: Config, data: DataSet) -> Evaluation:
        """What a run is judged by."""
        assert isinstance(config, SemiConfig)
        return split_data(config, data).evaluation

    def evaluation_pipeline(self, config: Config, folder: Path) -> Compose:
        """The run's own normalisation; a whitening is kept in its folder."""
        assert isinstance(config, SemiConfig)
        whiten = None
        if config.normalisation == "zca":
            whiten = ZCAWhitening.read(folder / WHITENING_FILE, config.data_digest)
        return Compose(normaliser_for(config, whiten))
