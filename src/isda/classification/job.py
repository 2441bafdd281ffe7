"""A classification run while it goes on: batches of labelled images, and the error on those that it is judged by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from isda.classification.batches import Batch, Batches, evaluation_batches, parts_as_batches
from isda.classification.class_sizes import measured_parts
from isda.classification.config import Config
from isda.classification.evaluation import evaluate
from isda.classification.first_pass import criteria_of, fill_statistics
from isda.classification.generated import generated_images
from isda.classification.methods import ClassificationMethod
from isda.classification.pipelines import training_pipeline
from isda.classification.split import Evaluation, split_data
from isda.data import DataSet
from isda.data.augment import Compose
from isda.engine.method import Method
from isda.engine.task import Place
from isda.engine.trainer import Trainer
from isda.errors import of_type
from isda.losses.targets import is_soft
from isda.networks import Network
from isda.networks.export import TIMM_FILE, write_for_timm
from isda.networks.layers import layer_rates

__all__ = ["ClassificationJob", "ImageJob"]


class ImageJob(Trainer):
    """What all jobs have that train a classifier of images.

    Args:
        config: of the run.
        network: on its device.
        method: made for it.
        place: where it runs.
        evaluation: what it is judged by.
        pipeline: from those images to what the network sees.
    """

    config: Config
    network: Network

    def __init__(
        self, config: Config, network: Network, method: Method, place: Place, evaluation: Evaluation, pipeline: Compose
    ) -> None:
        super().__init__(config, network, method, place.processes)
        self.place, self.evaluation, self.pipeline = place, evaluation, pipeline

    def rates(self) -> Mapping[nn.Parameter, float]:
        """Layers below the classifier learn more slowly where the configuration says so."""
        return {} if self.config.layer_decay == 1 else layer_rates(self.network, self.config.layer_decay)

    def samples(self, batch: Batch) -> int:
        """The labelled images of this process."""
        return len(batch.targets)

    def measured(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The training error, in percent; where targets are mixed, the share of them that is not at the prediction."""
        predicted = outputs.argmax(1)
        if is_soft(batch.targets):
            wrong = 1 - batch.targets.gather(1, predicted.unsqueeze(1)).double()
        else:
            wrong = (predicted != batch.targets).double()
        return {"error": 100 * wrong.sum()}

    def evaluate(self) -> dict[str, float]:
        """Error, likelihood and calibration."""
        images, labels, indices = self.evaluation
        mine = indices.tensor_split(self.processes.world)[self.processes.rank]
        batches = evaluation_batches(
            images, labels, mine, self.pipeline, self.processes.device, workers=self.place.workers
        )
        classes, parts = len(self.config.classes), measured_parts(self.config)
        return evaluate(self.evaluated, batches, classes, self.processes, self.config.channels_last, parts)


class ClassificationJob(ImageJob):
    """Labelled images only."""

    def __init__(
        self,
        config: Config,
        data: DataSet,
        network: Network,
        method: ClassificationMethod,
        place: Place,
        pipeline: Compose,
    ) -> None:
        training, evaluation = split_data(config, data)
        super().__init__(config, network, method, place, evaluation, pipeline)
        device = place.processes.device
        self.source = Batches(
            images=data.x_train.to(device) if isinstance(data.x_train, Tensor) else data.x_train,
            labels=data.y_train.to(device),
            indices=training,
            batch_size=config.batch_size,
            pipeline=training_pipeline(config.augment, config.mean, config.std, config.data, config.seen),
            seed=config.seed,
            rank=place.processes.rank,
            world=place.processes.world,
            device=device,
            workers=place.workers,
            generated=generated_images(config, device),
        )
        method.feed(self.source)

    def before_first_step(self) -> None:
        """Fill the statistics of criteria, if the recipe says so and there are any."""
        criteria = criteria_of(self.method) if self.config.first_pass else []
        if not criteria:
            return
        source, world, rank = self.source, self.processes.world, self.processes.rank
        # As many parts in each process as in the others, none of them empty: statistics are exchanged after each.
        whole = source.indices.tensor_split(-(-len(source.indices) // self.config.batch_size))
        parts = [part.tensor_split(world)[rank] for part in whole]
        batches = parts_as_batches(
            source.images, source.labels, parts, self.pipeline, self.processes.device, workers=self.place.workers
        )
        with self._autocast():
            fill_statistics(
                criteria, self.network, (batch.to(self.config.dtype, self.config.channels_last) for batch in batches)
            )

    def conclude(self, folder: Path) -> dict[str, Any]:
        """A pretrained model of timm is also written as timm loads it."""
        config = self.config
        if config.pretrained and self.processes.first:
            network = of_type(self.evaluated, Network)
            told = {"classes": config.classes, "mean": config.mean, "std": config.std, "input_size": config.input_size}
            write_for_timm(network, config.network, config.network_options, folder / TIMM_FILE, told)
        return {}

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Augmented images with their labels."""
        for batch in self.source.epoch(epoch, start):
            yield batch.to(self.config.dtype, self.config.channels_last)
