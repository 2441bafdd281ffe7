"""A classification run while it goes on: batches of labelled images, and the error on those that it is judged by."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from isda.classification.batches import Batch, Batches, evaluation_batches
from isda.classification.config import Config
from isda.classification.evaluation import evaluate
from isda.classification.generated import generated_images
from isda.classification.methods import ClassificationMethod
from isda.classification.pipelines import training_pipeline
from isda.classification.split import Evaluation, split_data
from isda.data import DataSet
from isda.data.augment import Compose
from isda.engine.method import Method
from isda.engine.task import Place
from isda.engine.trainer import Trainer
from isda.losses.targets import is_soft
from isda.networks import Network

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
        return evaluate(self.evaluated, batches, len(self.config.classes), self.processes, self.config.channels_last)


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
            pipeline=training_pipeline(config.augment, config.mean, config.std, config.data),
            seed=config.seed,
            rank=place.processes.rank,
            world=place.processes.world,
            device=device,
            workers=place.workers,
            generated=generated_images(config, device),
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Augmented images with their labels."""
        for batch in self.source.epoch(epoch, start):
            yield batch.to(self.config.dtype, self.config.channels_last)
