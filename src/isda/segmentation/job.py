"""A segmentation run while it goes on: batches of crops, and the confusion matrix of the images that judge it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isda.data.segmentation import IGNORED, SegmentationData
from isda.engine.folder.checkpoint import State
from isda.engine.task import Place
from isda.engine.trainer import Trainer
from isda.losses.spatial import resize_labels
from isda.networks.segmentation import SegmentationNetwork
from isda.segmentation.batches import Batch, Batches, evaluation_batches
from isda.segmentation.config import Config
from isda.segmentation.drawing import draw
from isda.segmentation.evaluation import count, measures
from isda.segmentation.inference import SCALES, predictor
from isda.segmentation.methods import SegmentationMethod
from isda.segmentation.metrics import ConfusionMatrix

__all__ = ["PICTURES", "SegmentationJob"]

PICTURES = "pictures"
"""The folder, within the run's, of what the finished network makes of a few images."""
DRAWN = 4


class SegmentationJob(Trainer):
    """Images with labelled pixels.

    Args:
        config: of the run.
        data: the images.
        network: on its device.
        method: made for it.
        place: where it runs.
    """

    config: Config
    network: SegmentationNetwork

    def __init__(
        self,
        config: Config,
        data: SegmentationData,
        network: SegmentationNetwork,
        method: SegmentationMethod,
        place: Place,
    ) -> None:
        super().__init__(config, network, method, place.processes)
        self.place, self.judging = place, data.part(config.evaluated_on)
        processes = place.processes
        self.source = Batches(data.train, config, processes.rank, processes.world, processes.device, place.workers)
        self._last: ConfusionMatrix | None = None

    def make_optimiser(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Plain momentum, as in the authors' code."""
        config = self.config
        return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Augmented crops with their labels."""
        for batch in self.source.epoch(epoch, start):
            yield batch.to(self.config.dtype, self.config.channels_last)

    def samples(self, batch: Batch) -> float:
        """An equal share of every process: methods divide by the pixels of all processes together."""
        return self.config.batch_size / self.processes.world

    def measured(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The share of right pixels in the crops, in percent, at the resolution of the logits."""
        targets = resize_labels(batch.targets, outputs.shape[2:])
        counted = targets != IGNORED
        right = ((outputs.argmax(1) == targets) & counted).double().sum() / counted.sum().clamp(min=1)
        return {"accuracy": 100 * self.samples(batch) * right}

    def evaluate(self) -> dict[str, float]:
        """Mean intersection over union and pixel accuracy of whole images at their own size."""
        self._last = self._count()
        return measures(self._last)

    def restore(self, state: State) -> None:
        """Take up where a checkpoint was made."""
        super().restore(state)
        self._last = None

    def conclude(self, folder: Path) -> dict[str, Any]:
        """Figures per class, and at several scales if asked for; pictures of a few images."""
        confusion = self._last or self._count()
        result: dict[str, Any] = {"per_class": {"iou": confusion.iou_by_name(self.config.classes)}}
        if self.config.multi_scale:
            for name, flip in (("miou_multi_scale", False), ("miou_multi_scale_flip", True)):
                result[name] = measures(self._count(scales=SCALES, flip=flip))["miou"]
        if self.processes.first:
            chosen = sorted({i * len(self.judging) // DRAWN for i in range(DRAWN)})
            draw(self.evaluated, self.judging, chosen, self.config, folder / PICTURES)
        self.processes.wait()
        return result

    def _count(self, **way: Any) -> ConfusionMatrix:
        config, processes = self.config, self.processes
        mine = torch.arange(len(self.judging)).tensor_split(processes.world)[processes.rank]
        return count(
            self.evaluated,
            evaluation_batches(self.judging, mine, config, processes.device, self.place.workers),
            len(config.classes),
            processes,
            channels_last=config.channels_last,
            way=partial(predictor, **way),
        )
