"""Fine-tuning of the backbone of a finished run as a task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar

from isda.lab.choices import expect_type
from isda.lab.data import DataSet
from isda.lab.engine.config import RunConfig
from isda.lab.engine.settings import AUTO, Auto, RunSettings, auto
from isda.lab.engine.task import Job, RunContext
from isda.lab.methods.registry import find_method
from isda.lab.networks import Network
from isda.lab.tasks.classification.resolve import resolve
from isda.lab.tasks.classification.settings import ClassificationConfig, ClassificationSettings
from isda.lab.tasks.classification.task import Classification, ClassificationJob
from isda.lab.tasks.common.data import EvaluationImages
from isda.lab.tasks.transfer.features import Source, adapt_images, load_source

EPOCHS = 20
LEARNING_RATE = 0.01
METHOD = "cross-entropy"


@dataclass(frozen=True, kw_only=True)
class FineTuningSettings(ClassificationSettings):
    """As for classification; network and seed are the backbone's, and 20 epochs from a rate of 0.01 the default."""

    source: Auto[str] = auto()
    """The run folder of the backbone."""


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig(FineTuningSettings, ClassificationConfig):
    """Method and seed are the backbone's; the fine-tuning itself is by cross-entropy, whatever the backbone saw."""

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

    def resolve(self, settings: ClassificationSettings, data: DataSet) -> FineTuningConfig:
        """The backbone's network, with the images and classes of the data set."""
        settings = expect_type(settings, FineTuningSettings)
        source = load_source(Path(settings.source or ""))
        config = resolve(_with_backbone(settings, source), adapt_images(data, source.trained.config))
        own = {"task": self.name, "data_digest": data.digest, "settings": settings.given()}
        # A backbone that was itself fine-tuned sees images at a size of its own.
        own |= {name: getattr(source.trained.config, name) for name in ("input_size", "input_resize")}
        return FineTuningConfig(**{f.name: getattr(config, f.name) for f in fields(config)} | source.fields | own)

    def start(self, config: ClassificationConfig, data: DataSet, context: RunContext) -> Job:
        """The run, before its first step."""
        network = self.network_for(config, context)
        method = find_method(METHOD).create(network, replace(config, method=METHOD, method_options={}))
        method.to(context.processes.device)
        pipeline = self.evaluation_pipeline(config, context.folder)
        return ClassificationJob(config, adapt_images(data, config), network, method, context, pipeline)

    def network_for(self, config: ClassificationConfig, context: RunContext) -> Network:
        """The backbone with a new classifier, on its device."""
        config = expect_type(config, FineTuningConfig)
        network = super().network_for(config, context)
        source = load_source(Path(config.source))
        if source.sha256 != config.source_sha256:
            raise ValueError(f"{config.source} holds another network than when the run was planned")
        network.body.load_state_dict(source.trained.network.body.state_dict())
        return network

    def evaluation(self, config: ClassificationConfig, data: DataSet) -> EvaluationImages:
        """The images that a run is evaluated on, as the backbone sees them."""
        return super().evaluation(config, adapt_images(data, config))


def _with_backbone(settings: ClassificationSettings, source: Source) -> ClassificationSettings:
    """The settings with all that the backbone decides."""
    for name in ("network", "method", "seed", "width", "dropout", "lambda_0", "pretrained"):
        if getattr(settings, name) is not None:
            raise ValueError(f"{name} is the backbone's when it is fine-tuned, got {getattr(settings, name)!r}")
    config = source.trained.config
    options = {key: json.dumps(value) for key, value in config.network_options.items()}
    return replace(
        ClassificationSettings(**{f.name: getattr(settings, f.name) for f in fields(ClassificationSettings)}),
        network=config.network,
        network_options=options,
        method=METHOD,
        seed=config.seed,
        lr=LEARNING_RATE if settings.lr is AUTO else settings.lr,
        epochs=EPOCHS if settings.epochs is AUTO and settings.scale is AUTO else settings.epochs,
    )
