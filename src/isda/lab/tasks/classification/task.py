"""Classification as a task of the engine, and the job that trains one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isda import ISDALoss
from isda.covariance import Covariance
from isda.lab.choices import expect_type
from isda.lab.data import DataSet, load
from isda.lab.data.augment import Compose
from isda.lab.devices import in_eval_mode
from isda.lab.engine.checkpoint import State
from isda.lab.engine.config import RunConfig
from isda.lab.engine.method import Method
from isda.lab.engine.options import option_types, split_method
from isda.lab.engine.settings import AUTO, RunSettings
from isda.lab.engine.task import HeldOut, Job, RunContext, Task
from isda.lab.engine.trainer import Trainer
from isda.lab.methods.registry import METHODS, ClassificationMethod, find_method
from isda.lab.methods.summaries import COMPARED
from isda.lab.networks import Network
from isda.lab.networks.export import TIMM_FILE, write_for_timm
from isda.lab.networks.network import layer_rate_factors
from isda.lab.tasks.classification.generated import generated_images
from isda.lab.tasks.classification.pipelines import evaluation_pipeline, training_pipeline
from isda.lab.tasks.classification.pretrained import create_network, load_initial_weights
from isda.lab.tasks.classification.resolve import choose_network, resolve
from isda.lab.tasks.classification.settings import ClassificationConfig, ClassificationSettings
from isda.lab.tasks.common.data import (
    EvaluationImages,
    ImageBatch,
    ImageBatches,
    batches_of_parts,
    evaluation_batches,
    split_data,
)
from isda.lab.tasks.common.evaluation import Tally, count
from isda.lab.tasks.common.predictions import PREDICTIONS_FILE


def criteria_of(method: nn.Module) -> list[ISDALoss]:
    """The criteria over augmented features within a method, whatever it puts around them."""
    return [module for module in method.modules() if isinstance(module, ISDALoss)]


@torch.no_grad()
def fill_statistics(criteria: Iterable[ISDALoss], network: Network, batches: Iterable[ImageBatch]) -> None:
    """Let the covariances of criteria learn from the features of a network in eval mode.

    A pretrained network has features worth knowing from the first step on; with statistics that start empty, the first
    epochs would be augmented along what a handful of images happen to show.

    Args:
        criteria: on the classifier of the network.
        network: its mode is as before afterwards.
        batches: images as the network takes them, equally many batches in each process.
    """
    with in_eval_mode(network):
        for batch in batches:
            features = network.features(batch.images)
            for criterion in criteria:
                criterion.covariance.update(features, batch.targets)


@torch.no_grad()
def mean_margin_variance(covariance: Covariance, classifier: nn.Linear | nn.Conv2d) -> float:
    """The mean of (w_j - w_y)' Sigma_y (w_j - w_y) over all pairs of classes j != y.

    λ/2 of it is what ISDA adds to the logit of a wrong class on average, if the classes occur equally often.

    Args:
        covariance: of the features of each class.
        classifier: a linear layer, or a 1x1 convolution.
    """
    weight = classifier.weight.flatten(1)
    classes = len(weight)
    total = covariance.margins(weight, torch.arange(classes, device=weight.device)).double().sum()
    return float(total) / max(1, classes * (classes - 1))


class ImageJob(Trainer):
    """What all jobs have that train a classifier of images.

    Args:
        config: of the run.
        network: on its device.
        method: made for it.
        context: where it runs.
        evaluation: the images that it is evaluated on.
        pipeline: from those images to what the network sees.
        originals: those images as the data set has them; by default `evaluation`.
    """

    config: ClassificationConfig
    network: Network

    def __init__(
        self,
        config: ClassificationConfig,
        network: Network,
        method: Method,
        context: RunContext,
        evaluation: EvaluationImages,
        pipeline: Compose,
        originals: EvaluationImages | None = None,
    ) -> None:
        super().__init__(config, network, method, context.processes)
        self.context, self.evaluation, self.pipeline = context, evaluation, pipeline
        self.originals = originals or evaluation
        self._last: Tally | None = None

    def rates(self) -> Mapping[nn.Parameter, float]:
        """Layers below the classifier learn more slowly if the configuration says so."""
        return {} if self.config.layer_decay == 1 else layer_rate_factors(self.network, self.config.layer_decay)

    def samples(self, batch: ImageBatch) -> int:
        """The labelled images of this process."""
        return len(batch.targets)

    def measured(self, outputs: Tensor, batch: ImageBatch) -> dict[str, Tensor]:
        """The training error, in percent; where targets are mixed, the share of them that is not at the prediction."""
        predicted = outputs.argmax(1)
        if batch.targets.is_floating_point():
            wrong = 1 - batch.targets.gather(1, predicted.unsqueeze(1)).double()
        else:
            wrong = (predicted != batch.targets).double()
        return {"error": 100 * wrong.sum()}

    def finish_epoch(self, epoch: int, step: int) -> dict[str, Any]:
        """The metrics of an epoch, with the mean margin variance of a criterion over augmented features."""
        metrics = super().finish_epoch(epoch, step)
        for criterion in criteria_of(self.method)[:1]:
            metrics["margin_variance"] = mean_margin_variance(criterion.covariance, self.network.classifier)
        return metrics

    def evaluate(self) -> dict[str, float]:
        """Error, likelihood and calibration."""
        images, labels, indices = self.evaluation
        mine = indices.tensor_split(self.processes.world)[self.processes.rank]
        batches = evaluation_batches(
            images, labels, mine, self.pipeline, self.processes.device, workers=self.context.workers
        )
        classes, channels_last = len(self.config.classes), self.config.channels_last
        self._last = count(self.evaluated, batches, classes, self.processes, channels_last, keep=True)
        return self._last.measures()

    def restore(self, state: State) -> None:
        """Take up where a checkpoint was made."""
        super().restore(state)
        self._last = None

    def conclude(self, folder: Path) -> dict[str, Any]:
        """The error of each class; the predictions of the final evaluation, which pages show."""
        if self._last is None:  # resumed after the last step
            self.processes.share_buffers(self.evaluated)
            self.evaluate()
        _, labels, indices = self.originals
        predictions = expect_type(self._last, Tally).predictions(labels[indices], indices, self.processes)
        if self.processes.first:
            predictions.with_pictures(self.originals.images).save(folder / PREDICTIONS_FILE)
        return {"per_class": {"error": predictions.errors(self.config.classes)}}


class ClassificationJob(ImageJob):
    """Labelled images only."""

    def __init__(
        self,
        config: ClassificationConfig,
        data: DataSet,
        network: Network,
        method: ClassificationMethod,
        context: RunContext,
        pipeline: Compose,
    ) -> None:
        training, evaluation = split_data(config, data)
        super().__init__(config, network, method, context, evaluation, pipeline)
        device = context.processes.device
        self.source = ImageBatches(
            images=data.x_train.to(device) if isinstance(data.x_train, Tensor) else data.x_train,
            labels=data.y_train.to(device),
            indices=training,
            batch_size=config.batch_size,
            pipeline=training_pipeline(config.augment, config.mean, config.std, config.data, config.seen),
            seed=config.seed,
            rank=context.processes.rank,
            world=context.processes.world,
            device=device,
            workers=context.workers,
            generated=generated_images(config, device),
        )

    def before_first_step(self) -> None:
        """Fill the statistics of criteria, if the recipe says so and there are any."""
        criteria = criteria_of(self.method) if self.config.first_pass else []
        if not criteria:
            return
        source, world, rank = self.source, self.processes.world, self.processes.rank
        # As many parts in each process as in the others, none of them empty: statistics are exchanged after each.
        indices = source.indices
        whole = indices.tensor_split(-(-len(indices) // self.config.batch_size))
        parts = [part.tensor_split(world)[rank] for part in whole]
        batches = batches_of_parts(
            source.images, source.labels, parts, self.pipeline, self.processes.device, workers=self.context.workers
        )
        with self._autocast():
            fill_statistics(
                criteria, self.network, (batch.to(self.config.dtype, self.config.channels_last) for batch in batches)
            )

    def conclude(self, folder: Path) -> dict[str, Any]:
        """As for all classifiers; a pretrained model of timm is also written as timm loads it."""
        config = self.config
        if config.pretrained and self.processes.first:
            network = expect_type(self.evaluated, Network)
            metadata = {name: getattr(config, name) for name in ("classes", "mean", "std", "input_size")}
            write_for_timm(network, config.network, config.network_options, folder / TIMM_FILE, metadata)
        return super().conclude(folder)

    def batches(self, epoch: int, start: int = 0) -> Iterator[ImageBatch]:
        """Augmented images with their labels."""
        for batch in self.source.epoch(epoch, start):
            yield batch.to(self.config.dtype, self.config.channels_last)


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
    settings_type: ClassVar[type[RunSettings]] = ClassificationSettings
    config_type: ClassVar[type[RunConfig]] = ClassificationConfig
    default_methods = COMPARED
    default_data = "digits"
    class_options = ("covariance",)

    def __init__(self, network: Network | None = None) -> None:
        self._network = network

    def methods(self) -> Sequence[str]:
        """Supervised ones."""
        return tuple(METHODS)

    def load(self, data: str | None, root: Path | None = None) -> DataSet:
        """The data set of a name, a folder or a file; scikit-learn's digits by default."""
        return load(data or "digits", root)

    def resolve(self, settings: ClassificationSettings, data: DataSet) -> ClassificationConfig:
        """See `isda.lab.tasks.classification.resolve`."""
        # Settings of a task that has further ones: ignored, they would promise what a run does not do.
        foreign = settings.given().keys() - {f.name for f in fields(self.settings_type)}
        if foreign:
            raise ValueError(f"{min(foreign)} is not a setting of method {settings.method or 'isda'}")
        return resolve(settings, data)

    def start(self, config: ClassificationConfig, data: DataSet, context: RunContext) -> Job:
        """The run, before its first step."""
        network = self.network_for(config, context)
        method = find_method(config.method).create(network, config)
        method.to(context.processes.device)
        pipeline = self.evaluation_pipeline(config, context.folder)
        return ClassificationJob(config, data, network, method, context, pipeline)

    def network_for(self, config: ClassificationConfig, context: RunContext) -> Network:
        """The network of a configuration with its initial weights, on its device."""
        torch.manual_seed(config.seed)
        network = load_initial_weights(self._network or create_network(config), config)
        network.to(device=context.processes.device, dtype=config.dtype)
        if config.channels_last:
            network.to(memory_format=torch.channels_last)
        return network

    def training(self, config: ClassificationConfig, data: DataSet) -> Tensor:
        """(N,) the training images that a run has learnt from with their labels."""
        return split_data(config, data)[0]

    def evaluation(self, config: ClassificationConfig, data: DataSet) -> EvaluationImages:
        """The images that a run is evaluated on."""
        return split_data(config, data)[1]

    def evaluation_pipeline(self, config: ClassificationConfig, folder: Path) -> Compose:
        """From the images that a run is evaluated on, or new ones, to what its network sees."""
        return evaluation_pipeline(config.augment, config.mean, config.std, config.seen)

    def options(self, method: str) -> dict[str, type]:
        """What may follow its colon."""
        return option_types(find_method(split_method(method)[0]).Options)

    def grid(self, settings: ClassificationSettings, data: DataSet) -> dict[str, tuple[Any, ...]]:
        """What the method declares."""
        name, _ = split_method(settings.method or "isda")
        return find_method(name).grid_for(choose_network(settings, data)[1])

    def held_out(self, settings: ClassificationSettings, data: DataSet) -> HeldOut:
        """5,000 training images, or a fifth of a small set, unless the user says how many."""
        total = len(data.y_train)
        held = settings.held_out or max(1, min(HELD_OUT, total // LARGEST_SHARE))
        description = f"{held:,} of {total:,} training images"
        labels = settings.labels
        if labels is not None and labels > total - held > 0:
            labels = total - held
            description += f", which leaves {labels:,} labels to learn from"
        choosing = replace(settings, held_out=held, labels=labels)
        return HeldOut(choosing, replace(settings, held_out=AUTO), description)
