"""Fine-tuning as a task of the engine: classification that begins with the backbone of a finished run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

from isda.classification.config import Config
from isda.classification.job import ClassificationJob
from isda.classification.methods import find_method
from isda.classification.resolving import resolve
from isda.classification.settings import Settings
from isda.classification.split import Evaluation
from isda.classification.task import Classification
from isda.data import DataSet
from isda.engine.folder.config import RunConfig
from isda.engine.settings import RunSettings
from isda.engine.task import Job, Place
from isda.errors import of_type
from isda.networks import Network
from isda.transfer.seeing import adapted
from isda.transfer.source import Source, load_source

__all__ = ["FineTuning", "FineTuningConfig", "FineTuningSettings"]

EPOCHS = 20
LEARNING_RATE = 0.01
METHOD = "cross-entropy"


@dataclass(frozen=True, kw_only=True)
class FineTuningSettings(Settings):
    """As for classification; network and seed are the backbone's, and 20 epochs from a rate of 0.01 the default."""

    source: str | None = None
    """The run folder of the backbone."""


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig(Config):
    """Method and seed are the backbone's; the fine-tuning itself is by cross-entropy, whatever the backbone saw."""

    source: str
    source_data: str
    source_sha256: str

    of_run: ClassVar[tuple[str, ...]] = ("source", "source_sha256")


class FineTuning(Classification):
    """All layers are trained, the classifier is new."""

    name = "fine-tuning"
    settings_type: ClassVar[type[RunSettings]] = FineTuningSettings
    config_type: ClassVar[type[RunConfig]] = FineTuningConfig

    def methods(self) -> Sequence[str]:
        """None of its own: a run is known by the method of its backbone."""
        return ()

    def resolve(self, settings: Settings, data: DataSet) -> FineTuningConfig:
        """The backbone's network, with the images and classes of the data set."""
        settings = of_type(settings, FineTuningSettings)
        source = load_source(Path(settings.source or ""))
        config = resolve(_with_backbone(settings, source), adapted(data, source.trained.config))
        own = {"task": self.name, "data_digest": data.digest, "asked": settings.asked()}
        # A backbone that was itself fine-tuned sees images at a size of its own.
        own |= {name: getattr(source.trained.config, name) for name in ("input_size", "input_resize")}
        return FineTuningConfig(**{f.name: getattr(config, f.name) for f in fields(config)} | source.fields | own)

    def start(self, config: Config, data: DataSet, place: Place) -> Job:
        """The run, before its first step."""
        network = self.network_for(config, place)
        method = find_method(METHOD).create(network, replace(config, method=METHOD, method_options={}))
        method.to(place.processes.device)
        pipeline = self.evaluation_pipeline(config, place.folder)
        return ClassificationJob(config, adapted(data, config), network, method, place, pipeline)

    def network_for(self, config: Config, place: Place) -> Network:
        """The backbone with a new classifier, on its device."""
        config = of_type(config, FineTuningConfig)
        network = super().network_for(config, place)
        source = load_source(Path(config.source))
        if source.sha256 != config.source_sha256:
            raise ValueError(f"{config.source} holds another network than when the run was planned")
        network.body.load_state_dict(source.trained.network.body.state_dict())
        return network

    def evaluation(self, config: Config, data: DataSet) -> Evaluation:
        """What a run is judged by, as the backbone sees it."""
        return super().evaluation(config, adapted(data, config))


def _with_backbone(settings: Settings, source: Source) -> Settings:
    """The settings with all that the backbone decides."""
    for name in ("network", "method", "seed", "width", "dropout", "lambda_0", "pretrained"):
        if getattr(settings, name) is not None:
            raise ValueError(f"{name} is the backbone's when it is fine-tuned, got {getattr(settings, name)!r}")
    config = source.trained.config
    options = {key: json.dumps(value) for key, value in config.network_options.items()}
    return replace(
        Settings(**{f.name: getattr(settings, f.name) for f in fields(Settings)}),
        network=config.network,
        network_options=options,
        method=METHOD,
        seed=config.seed,
        lr=LEARNING_RATE if settings.lr is None else settings.lr,
        epochs=EPOCHS if settings.epochs is None and settings.scale is None else settings.epochs,
    )
