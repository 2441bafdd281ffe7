"""How good a segmentation network is on images with labels: one confusion matrix over all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from isda.classification.batches import ready
from isda.engine.processes import Processes
from isda.networks.modes import in_eval_mode
from isda.segmentation.batches import Batch
from isda.segmentation.inference import Predict, whole
from isda.segmentation.metrics import ConfusionMatrix

__all__ = ["count", "measures"]


@torch.no_grad()
def count(
    network: nn.Module,
    batches: Iterable[Batch],
    classes: int,
    processes: Processes,
    *,
    channels_last: bool = False,
    way: Callable[[nn.Module], Predict] = whole,
) -> ConfusionMatrix:
    """The confusion matrix over the batches of all processes together; the network's mode is as before afterwards.

    Args:
        network: maps images to logits.
        batches: of this process.
        classes: C.
        processes: who else evaluates.
        channels_last: memory format of the images.
        way: how images are predicted, see `isda.segmentation.inference`.
    """
    confusion = ConfusionMatrix(classes, device=processes.device)
    dtype = next(network.parameters()).dtype
    predict = way(network)
    with in_eval_mode(network):
        for batch in batches:
            confusion.add(predict(ready(batch.images, dtype, channels_last)).argmax(1), batch.targets)
    processes.add_up(confusion.counts)
    return confusion


def measures(confusion: ConfusionMatrix) -> dict[str, float]:
    """Mean intersection over union and pixel accuracy, in percent."""
    return {"miou": 100 * confusion.mean_iou(), "accuracy": 100 * confusion.pixel_accuracy()}
