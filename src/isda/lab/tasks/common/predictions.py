"""The predictions of a run on its evaluation images, kept in the run folder for pages.

Each image costs 12 bytes; the most confident mistakes are kept as small pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from isda.lab.engine.checkpoint import write_tensors
from isda.lab.files import atomic_write

if TYPE_CHECKING:  # pages are made without data sets
    from isda.lab.data.dataset import Images

PREDICTIONS_FILE = "predictions.safetensors"
BINS = 15
"""Of confidence, for the calibration error and reliability diagrams."""
MISTAKES = 12
"""How many mistakes of a run are kept as pictures, if its images are grey or colour images."""
SIDE = 64
"""Pixels of the longer side of a picture; larger images are reduced."""
_COLUMNS = {"indices": torch.int32, "labels": torch.int16, "predicted": torch.int16, "confidence": torch.float32}
"""The columns of the file; with more classes than int16 can count, labels and predictions are int32."""
_PICTURE = "mistake-"


@dataclass(frozen=True)
class Predictions:
    """What a network predicts for the images that a run is evaluated on."""

    indices: Tensor
    """(N,) positions of the images in the data set."""
    labels: Tensor
    """(N,) classes of the images."""
    predicted: Tensor
    """(N,) classes of the highest probability."""
    confidence: Tensor
    """(N,) that probability."""
    pictures: tuple[Tensor, ...] = ()
    """The images of `mistakes`, uint8 (channels, H, W)."""

    @property
    def mistakes(self) -> Tensor:
        """(at most MISTAKES,) rows of the wrong predictions, the most confident first; ties in the order of rows."""
        rows = (self.predicted != self.labels).nonzero().flatten()
        return rows[self.confidence[rows].argsort(descending=True, stable=True)[:MISTAKES]]

    def errors(self, classes: Sequence[str]) -> dict[str, float]:
        """The error of each class that has images, in percent.

        Example:
            >>> labels, predicted = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1])
            >>> Predictions(torch.arange(3), labels, predicted, torch.ones(3)).errors(("cat", "dog", "cow"))
            {'cat': 50.0, 'dog': 0.0}
        """
        counts = torch.bincount(self.labels.long(), minlength=len(classes)).tolist()
        hits = torch.bincount(self.labels.long()[self.predicted == self.labels], minlength=len(classes)).tolist()
        return {
            name: 100 * (1 - right / count) for name, count, right in zip(classes, counts, hits, strict=True) if count
        }

    def with_pictures(self, images: Images) -> Predictions:
        """The same predictions with the pictures of the mistakes, from the images of the data set."""
        chosen = [images[index] for index in self.indices[self.mistakes].tolist()]
        return replace(self, pictures=tuple(_reduced(picture) for picture in chosen if len(picture) in (1, 3)))

    def save(self, path: Path) -> None:
        """Write the file, atomically."""
        columns = {name: getattr(self, name).to("cpu", dtype) for name, dtype in _column_types(self.labels).items()}
        pictures = {f"{_PICTURE}{index:02d}": picture.cpu() for index, picture in enumerate(self.pictures)}
        with atomic_write(path) as unfinished:
            write_tensors(columns | pictures, unfinished)

    @classmethod
    def read(cls, path: Path, num_classes: int) -> Predictions:
        """Read the file.

        Raises:
            ValueError: it is damaged, or not of a classifier of that many classes.
        """
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError, ValueError) as error:
            raise ValueError(f"{path} does not hold the predictions of a run: {error}") from error
        problem = _problem(tensors, num_classes)
        if problem:
            raise ValueError(f"{path} does not hold the predictions of a run: {problem}")
        predictions = cls(tensors["indices"], tensors["labels"], tensors["predicted"], tensors["confidence"])
        pictures = [tensors[name] for name in sorted(tensors) if name.startswith(_PICTURE)]
        return replace(predictions, pictures=tuple(pictures[: len(predictions.mistakes)]))


def _column_types(labels: Tensor) -> Mapping[str, torch.dtype]:
    many = bool((labels > torch.iinfo(torch.int16).max).any())
    return {name: torch.int32 if many and dtype == torch.int16 else dtype for name, dtype in _COLUMNS.items()}


def _problem(tensors: Mapping[str, Tensor], num_classes: int) -> str:
    """What is wrong with the content of a file, if anything."""
    missing = [name for name in _COLUMNS if name not in tensors]
    if missing:
        return f"it lacks {', '.join(missing)}"
    columns = [tensors[name] for name in _COLUMNS]
    if any(column.dim() != 1 or len(column) != len(columns[0]) for column in columns) or not len(columns[0]):
        return "its columns must have one length above 0"
    if any(tensors[name].dtype not in (torch.int16, torch.int32) for name in ("indices", "labels", "predicted")):
        return "indices and classes must be integers"
    confidence = tensors["confidence"]
    if confidence.dtype != torch.float32 or not bool(((confidence >= 0) & (confidence <= 1.001)).all()):
        return "confidences must be float32 from 0 to 1"
    for name in ("labels", "predicted"):
        low, high = (int(value) for value in tensors[name].aminmax())
        if low < 0 or high >= num_classes:
            return f"{name} must lie in 0..{num_classes - 1}, got {low} to {high}"
    for name, picture in tensors.items():
        if name.startswith(_PICTURE):
            fits = picture.dim() == 3 and picture.shape[0] in (1, 3) and 0 < max(picture.shape[1:]) <= SIDE
            if not fits or picture.dtype != torch.uint8 or not picture.numel():
                return f"{name} must be an image of at most {SIDE} pixels"
    return ""


def _reduced(picture: Tensor) -> Tensor:
    """An image, uint8 (channels, H, W), with no side longer than SIDE."""
    height, width = picture.shape[-2:]
    share = SIDE / max(height, width)
    if share >= 1:
        return picture
    size = max(1, round(height * share)), max(1, round(width * share))
    reduced = torch.nn.functional.interpolate(
        picture.unsqueeze(0).float(), size=size, mode="bilinear", antialias=True, align_corners=False
    )
    return reduced[0].round().clamp(0, 255).to(torch.uint8)
