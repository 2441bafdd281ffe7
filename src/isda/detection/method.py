"""What detectors minimise: the sum of the losses of proposals, boxes, classes and masks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from isda.detection.batches import Batch
from isda.detection.config import Config
from isda.engine.method import Outcome
from isda.engine.named_method import NamedMethod
from isda.networks.detection import Detector

__all__ = ["METHODS", "DetectionMethod", "MultiTask", "MultiTaskOptions"]


class DetectionMethod(NamedMethod):
    """A method of detection, made with an instance of its Options, a `Detector` and a `Config`."""


@dataclass(frozen=True, kw_only=True)
class MultiTaskOptions:
    """What may follow ``multi-task:``; the runs of one comparison can differ in what they start from."""

    backbone: str | None = None
    """As the setting of the same name, which it replaces."""
    backbone_weights: str | None = None
    """As the setting of the same name, which it replaces."""


class MultiTask(DetectionMethod):
    """The multi-task loss of the R-CNN family (Girshick, 2015; Ren et al., 2015): a plain sum of all terms."""

    name = "multi-task"
    Options = MultiTaskOptions

    def __init__(self, options: MultiTaskOptions, network: Detector, config: Config) -> None:
        super().__init__()

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """The detector's own terms."""
        losses = network(batch.images, batch.targets)
        return Outcome({name.removeprefix("loss_"): loss for name, loss in losses.items()}, None)


METHODS: dict[str, type[DetectionMethod]] = {MultiTask.name: MultiTask}
