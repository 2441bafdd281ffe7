"""A detection run while it goes on: batches of images with objects, and COCO's figures of those that judge it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isda.data.coco import CocoData
from isda.detection.batches import Batch, Batches, evaluation_images
from isda.detection.config import Config
from isda.detection.evaluation import Scores, detect, records_of, score
from isda.detection.method import DetectionMethod
from isda.detection.pictures import PICTURES, beside, save
from isda.detection.recipes import warmed_up
from isda.engine.folder.checkpoint import State
from isda.engine.task import Place
from isda.engine.trainer import Trainer
from isda.networks.detection import Detector, has_masks

__all__ = ["DetectionJob"]


class DetectionJob(Trainer):
    """Images with boxes and masks.

    Args:
        config: of the run.
        data: the images.
        network: on its device.
        method: made for it.
        place: where it runs.
    """

    config: Config
    network: Detector

    def __init__(
        self, config: Config, data: CocoData, network: Detector, method: DetectionMethod, place: Place
    ) -> None:
        super().__init__(config, network, method, place.processes)
        self.place, self.judging, self.masks = place, data.validation, has_masks(config.network)
        self.source = Batches(
            part=data.train,
            masks=self.masks,
            batch_size=config.batch_size,
            seed=config.seed,
            rank=place.processes.rank,
            world=place.processes.world,
            workers=place.workers,
        )
        self._last: Scores | None = None

    def make_optimiser(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Plain momentum, as in MMDetection; what is frozen is left out."""
        config = self.config
        return torch.optim.SGD(
            [parameter for parameter in parameters if parameter.requires_grad],
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )

    def learning_rate(self, step: int) -> float:
        """The schedule's, after a warm-up."""
        return warmed_up(self.config, step, self.config.warmup_steps)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Images with their objects."""
        for batch in self.source.epoch(epoch, start):
            yield batch.to(self.processes.device, self.config.dtype)

    def samples(self, batch: Batch) -> int:
        """The images of this process."""
        return len(batch.images)

    def measured(self, outputs: None, batch: Batch) -> dict[str, Tensor]:
        """Nothing beside the loss terms."""
        return {}

    def evaluate(self) -> dict[str, float]:
        """COCO's figures."""
        self._last = self._score()
        return self._last.figures

    def restore(self, state: State) -> None:
        """Take up where a checkpoint was made."""
        super().restore(state)
        self._last = None

    def conclude(self, folder: Path) -> dict[str, Any]:
        """AP per class; pictures of what was found in a few images beside what is there."""
        scores = self._last or self._score()
        if self.processes.first:
            chosen = torch.tensor(self.judging.marked[:: max(1, len(self.judging.marked) // PICTURES)][:PICTURES])
            images = evaluation_images(self.judging, chosen, self.place.workers)
            for position, found in detect(self.evaluated, images, self.processes.device):
                picture = beside(self.judging, position, found, self.masks, self.config.classes)
                save(picture, folder / "pictures" / f"image-{self.judging.images[position].id}.png")
        self.processes.wait()
        return {"per_class": scores.per_class}

    def _score(self) -> Scores:
        mine = torch.arange(len(self.judging)).tensor_split(self.processes.world)[self.processes.rank]
        images = evaluation_images(self.judging, mine, self.place.workers)
        records = [
            record
            for position, found in detect(self.evaluated, images, self.processes.device)
            for record in records_of(found, self.judging.images[position].id, self.config.category_ids)
        ]
        return score(self.judging, self.processes.gather(records), masks=self.masks)
