"""Predictions of finished runs, pooled over the seeds of each method: calibration, confusions and mistakes.

Runs of classifiers leave them in their folders (`isda.lab.tasks.common.predictions`); those of other tasks have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isda.lab.engine.run_records import RunRecord
from isda.lab.report.summary import Comparison
from isda.lab.tasks.common.predictions import BINS, PREDICTIONS_FILE, Predictions

MOST_BYTES = 2**28
"""Larger files are not read."""


class Bin(NamedTuple):
    """The images whose confidence lies in one of BINS equal intervals."""

    confidence: float
    """Mean confidence."""
    accuracy: float
    """Share of correct predictions."""
    share: float
    """Share of all images."""


class Pair(NamedTuple):
    """Images of one class that are taken for another."""

    label: int
    predicted: int


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction, with its picture."""

    picture: Tensor
    """uint8 (1 or 3, H, W)."""
    label: int
    predicted: int
    confidence: float
    wrong: int
    """The number of runs that predict a wrong class for the image."""
    runs: int
    """The number of runs that were evaluated on it."""


@dataclass(frozen=True)
class MethodPredictions:
    """The predictions of a method's finished runs; classes are named by their position."""

    label: str
    classes: tuple[str, ...]
    runs: tuple[Predictions, ...]

    @property
    def accuracy(self) -> float:
        """The share of correct predictions."""
        return float(torch.cat([run.predicted == run.labels for run in self.runs]).double().mean())

    @property
    def confidence(self) -> float:
        """The mean confidence."""
        return float(torch.cat([run.confidence for run in self.runs]).double().mean())

    def bins(self) -> list[Bin]:
        """The reliability diagram: the bins that hold images, in ascending order of confidence."""
        confidence = torch.cat([run.confidence for run in self.runs]).double()
        right = torch.cat([run.predicted == run.labels for run in self.runs]).double()
        position = (confidence * BINS).long().clamp(0, BINS - 1)
        count, sums, hits = (
            torch.bincount(position, weights=values, minlength=BINS).tolist()
            for values in (torch.ones_like(right), confidence, right)
        )
        return [
            Bin(total / number, correct / number, number / len(right))
            for number, total, correct in zip(count, sums, hits, strict=True)
            if number
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
            (-float(run.confidence[row]), int(run.indices[row]), run, row, picture)
            for run in self.runs
            for row, picture in zip(run.mistakes.tolist(), run.pictures, strict=False)
        ]
        found: dict[int, Mistake] = {}
        for confidence, index, run, row, picture in sorted(candidates, key=lambda candidate: candidate[:2]):
            if index not in found and len(found) < most:
                wrong, count = self._wrong(index)
                label, predicted = int(run.labels[row]), int(run.predicted[row])
                found[index] = Mistake(picture, label, predicted, -confidence, wrong, count)
        return list(found.values())

    def _wrong(self, index: int) -> tuple[int, int]:
        """How many runs predict a wrong class for an image, and how many were evaluated on it."""
        outcomes = [(run.predicted != run.labels)[run.indices == index] for run in self.runs]
        return int(torch.cat(outcomes).sum()), sum(map(len, outcomes))


def comparison_predictions(comparison: Comparison) -> list[MethodPredictions]:
    """The predictions of the methods that have left any.

    Raises:
        ValueError: a file was changed or is damaged.
    """
    found = []
    for method in comparison.methods:
        read = [predictions for run in method.runs if (predictions := _read(run)) is not None]
        if read:
            found.append(MethodPredictions(method.label, _classes(method.runs[0]), tuple(read)))
    return found


def most_confused(methods: list[MethodPredictions], most: int) -> list[Pair]:
    """The pairs of classes that are confused most often, by the mean share over methods."""
    mean = torch.stack([method.confusion() for method in methods]).mean(0)
    mean.fill_diagonal_(0)
    order = mean.flatten().argsort(descending=True, stable=True)[:most].tolist()
    size = len(mean)
    return [Pair(cell // size, cell % size) for cell in order if mean[cell // size, cell % size] > 0]


def _classes(run: RunRecord) -> tuple[str, ...]:
    """The class names of config.json; empty if there are none."""
    names = run.stored.get("classes")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _read(run: RunRecord) -> Predictions | None:
    classes = _classes(run)
    if run.result is None or not classes:
        return None
    path = run.folder / PREDICTIONS_FILE
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        return None
    return Predictions.read(path, len(classes))
