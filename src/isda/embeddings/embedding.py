"""The features of a data set by a network, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isda import __version__
from isda.classification.foreseeing import FAILURES, first_line
from isda.data import DataSet
from isda.data.dataset import Images
from isda.data.splits import balanced_sample
from isda.embeddings.backbones import Backbone
from isda.embeddings.npz_files import write_npz

__all__ = ["Embedded", "embed"]

SEED = 0
"""Which images are taken where not all are wanted."""

Progress = Callable[[Sequence[Tensor], str], Iterable[Tensor]]


@dataclass(frozen=True, eq=False)
class Embedded:
    """Features of training and test images (N, A) float32, their labels (N,) int64, class names, and where from."""

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    provenance: dict[str, Any]

    def write(self, path: Path) -> None:
        """As an .npz file that `isda classify` reads."""
        arrays: dict[str, NDArray[Any]] = {
            "x_train": self.x_train,
            "y_train": self.y_train,
            "x_test": self.x_test,
            "y_test": self.y_test,
            "classes": np.array(self.classes),
        }
        write_npz(path, arrays, self.provenance)


def embed(
    data: DataSet,
    backbone: Backbone,
    device: torch.device,
    *,
    train: int | None = None,
    test: int | None = None,
    batch_size: int = 64,
    progress: Progress = lambda parts, what: parts,
) -> Embedded:
    """Let a network see the images of a data set.

    Args:
        data: the images.
        backbone: the network.
        device: where it computes.
        train: how many training images, equally many of each class; all by default.
        test: how many test images, likewise.
        batch_size: images at once.
        progress: shows how far the batches have come.

    Raises:
        ValueError: features that are not finite, or more images asked for than there are.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    parts = {"train": (data.x_train, data.y_train, train), "test": (data.x_test, data.y_test, test)}
    chosen = {part: _chosen(part, labels, count) for part, (_, labels, count) in parts.items()}
    made = {}
    for part, (images, _, _) in parts.items():
        batches = progress(chosen[part].split(min(batch_size, len(chosen[part]))), f"{part} images")
        made[part] = torch.cat([_features(backbone, images, batch, device) for batch in batches]).numpy()
        broken = int((~np.isfinite(made[part]).all(1)).sum())
        if broken:
            raise ValueError(f"features must be finite, got {broken} {part} images of {data.name} whose are not")
    labels = {part: parts[part][1][chosen[part]].numpy() for part in parts}
    provenance = {"isda": __version__, "data": data.name, "data_digest": data.digest, **backbone.provenance}
    if train is not None or test is not None:
        provenance["drawn_with_seed"] = SEED
    return Embedded(made["train"], labels["train"], made["test"], labels["test"], data.classes, provenance)


def _features(backbone: Backbone, images: Images, batch: Tensor, device: torch.device) -> Tensor:
    try:
        return backbone.features(images, batch, device)
    except (AssertionError, *FAILURES) as error:  # timm asserts that images have the size of a vision transformer
        told = backbone.provenance
        raise ValueError(
            f"{told['network']} cannot take images of size {told['image_size']}: {first_line(error)}"
        ) from error


def _chosen(part: str, labels: Tensor, count: int | None) -> Tensor:
    if count is None:
        return torch.arange(len(labels))
    try:
        return balanced_sample(labels, count, SEED)
    except ValueError as error:
        raise ValueError(f"{part}: {error}") from error
