"""How well pixels are labelled: intersection over union per class, its mean, and the share of right pixels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isda.networks.arguments import positive_integer

__all__ = ["ConfusionMatrix"]


class ConfusionMatrix:
    """Counts of pixels by true class (rows) and predicted class (columns), from which every measure follows.

    Counts of several processes or images add up: ``processes.add_up(matrix.counts)``, or :meth:`merge`.

    Absent classes are treated as by Cityscapes' own script (evalPixelLevelSemanticLabeling.py), which leaves out of the
    mean only a class whose denominator TP + FP + FN is zero: one that is neither there nor predicted anywhere. A class
    that is predicted but not there has an intersection over union of 0, and counts.

    Args:
        num_classes: C.
        ignore_index: label of pixels that do not count, whatever is predicted there.
        device: where to count.

    Example:
        >>> matrix = ConfusionMatrix(3)
        >>> matrix.add(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 255]))
        >>> matrix.iou().tolist(), matrix.mean_iou(), round(matrix.pixel_accuracy(), 3)
        ([0.5, 0.5, nan], 0.5, 0.667)
    """

    def __init__(self, num_classes: int, ignore_index: int = 255, device: torch.device | str | None = None) -> None:
        positive_integer("num_classes", num_classes)
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self.counts = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)

    def add(self, predictions: Tensor, targets: Tensor) -> None:
        """Count the pixels of predicted and true labels of the same shape, on any device.

        Raises:
            ValueError: shapes that differ, or a label outside 0..C-1 other than ``ignore_index``.
        """
        if predictions.shape != targets.shape:
            told = f"got {tuple(predictions.shape)} and {tuple(targets.shape)}"
            raise ValueError(f"predictions and targets must have the same shape, {told}")
        counted = targets != self.ignore_index
        predictions, targets = (labels[counted].to(self.counts.device).long() for labels in (predictions, targets))
        for name, labels in (("predictions", predictions), ("targets", targets)):
            wrong = labels[(labels < 0) | (labels >= self.num_classes)]
            if len(wrong):
                allowed = f"0..{self.num_classes - 1}" + (f" or {self.ignore_index}" if name == "targets" else "")
                raise ValueError(f"{name} must be {allowed}, got {int(wrong[0])}")
        pairs = targets * self.num_classes + predictions
        self.counts += pairs.bincount(minlength=self.num_classes**2).view_as(self.counts)

    def merge(self, other: ConfusionMatrix) -> None:
        """Add what another matrix has counted."""
        if other.num_classes != self.num_classes:
            raise ValueError(f"other must count {self.num_classes} classes, got {other.num_classes}")
        self.counts += other.counts.to(self.counts.device)

    def iou(self) -> Tensor:
        r"""(C,) in float64: :math:`TP / (TP + FP + FN)`; nan for a class that is neither there nor predicted."""
        hits = self.counts.diagonal()
        return hits.double() / (self.counts.sum(0) + self.counts.sum(1) - hits).double()

    def mean_iou(self) -> float:
        """The mean over the classes that have one; nan if none has."""
        return float(self.iou().nanmean())

    def pixel_accuracy(self) -> float:
        """The share of pixels that are labelled right; nan if none was counted."""
        return float(self.counts.diagonal().sum().double() / self.counts.sum().double())

    def iou_by_name(self, classes: Sequence[str]) -> dict[str, float | None]:
        """The intersection over union under the names of the classes; None where there is none, as JSON has it.

        Example:
            >>> ConfusionMatrix(2).iou_by_name(["road", "sky"])
            {'road': None, 'sky': None}
        """
        if len(classes) != self.num_classes:
            raise ValueError(f"classes must be {self.num_classes} names, got {len(classes)}")
        values = self.iou().tolist()
        return {name: None if value != value else value for name, value in zip(classes, values, strict=True)}
