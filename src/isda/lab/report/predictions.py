"""Predictions of finished runs, pooled over the seeds of each method: calibration, confusions and mistakes.

Runs of classifiers leave them in their folders (`isda.lab.tasks.common.predictions`); those of other tasks have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isda.lab.report.comparison import Comparison, Method
from isda.lab.tasks.common.predictions import BINS, PREDICTIONS_FILE, Predictions


class Mistake(NamedTuple):
    """A wrong prediction, with its picture, uint8 (1 or 3, H, W), and the number of runs that are wrong about it."""

    picture: Tensor
    label: str
    predicted: str
    confidence: float
    wrong: int


@dataclass(frozen=True)
class MethodPredictions:
    """The predictions of a method's finished runs; ``style`` is its position in the comparison."""

    label: str
    style: int
    classes: tuple[str, ...]
    runs: tuple[Predictions, ...]

    @property
    def confidence(self) -> Tensor:
        """The confidences of all runs."""
        return torch.cat([run.confidence for run in self.runs]).double()

    @property
    def right(self) -> Tensor:
        """1 for each correct prediction of all runs, 0 for others."""
        return torch.cat([run.predicted == run.labels for run in self.runs]).double()

    def bins(self) -> list[tuple[float, float, float]]:
        """The reliability diagram: (middle of the bin, accuracy, share of all images) of each bin that holds images."""
        right = self.right
        position = (self.confidence * BINS).long().clamp(0, BINS - 1)
        counts = torch.bincount(position, minlength=BINS).tolist()
        hits = torch.bincount(position, right, minlength=BINS).tolist()
        return [
            ((index + 0.5) / BINS, hit / count, count / len(right))
            for index, (count, hit) in enumerate(zip(counts, hits, strict=True))
            if count
        ]

    def confusion(self) -> Tensor:
        """(C, C) the share of the images of each class (rows) that are predicted as each class (columns)."""
        size = len(self.classes)
        cells = torch.cat([run.labels.long() * size + run.predicted.long() for run in self.runs])
        counts = torch.bincount(cells, minlength=size * size).view(size, size).double()
        return counts / counts.sum(1, keepdim=True).clamp(min=1)

    def mistakes(self, most: int) -> list[Mistake]:
        """The most confident mistakes that have a picture, each image once."""
        candidates = [
            (-float(run.confidence[row]), int(run.indices[row]), number, row, picture)
            for number, run in enumerate(self.runs)
            for row, picture in zip(run.mistakes.tolist(), run.pictures, strict=False)
        ]
        found: dict[int, Mistake] = {}
        for confidence, index, number, row, picture in sorted(candidates, key=lambda one: one[:2]):
            if index not in found and len(found) < most:
                run = self.runs[number]
                wrong = sum(int((other.predicted != other.labels)[other.indices == index].sum()) for other in self.runs)
                label, predicted = self.classes[int(run.labels[row])], self.classes[int(run.predicted[row])]
                found[index] = Mistake(picture, label, predicted, -confidence, wrong)
        return list(found.values())


def comparison_predictions(comparison: Comparison) -> list[MethodPredictions]:
    """The predictions of the methods that have left any; a ValueError if a file is damaged."""
    found = []
    for style, method in enumerate(comparison.methods):
        classes = tuple(map(str, method.runs[0].stored.get("classes") or ()))
        read = _read(method, len(classes)) if classes else []
        if read:
            found.append(MethodPredictions(method.label, style, classes, tuple(read)))
    return found


def _read(method: Method, classes: int) -> list[Predictions]:
    files = [run.folder / PREDICTIONS_FILE for run in method.runs if run.result is not None]
    return [Predictions.read(file, classes) for file in files if file.is_file()]
