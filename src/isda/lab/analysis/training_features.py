"""Features of a run's training images, and their covariance within each class.

Covariances are those of the final features, for every method. `isda tightness` reads the ones an ISDA run estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from isda.covariance import FullCovariance
from isda.lab import seeds
from isda.lab.choices import expect_type
from isda.lab.data import DataSet, load
from isda.lab.data.augment import ResizeCenterCrop
from isda.lab.data.augment.compose import ConvertChannels
from isda.lab.tasks.classification.settings import ClassificationConfig
from isda.lab.tasks.classification.trained import TrainedClassifier, load_classifier
from isda.lab.tasks.common.data import evaluation_batches, images_at


def run_data(config: ClassificationConfig, data_root: Path | None = None) -> DataSet:
    """Load the data set of a run.

    Raises:
        ValueError: it has changed.
    """
    data = load(config.settings.get("data") or config.data, data_root)
    if data.digest != config.data_digest:
        raise ValueError(f"{data.name} must be the data set of the run, it has changed since the run was started")
    return data


@dataclass(frozen=True)
class Observed:
    """A trained network and the features of its training images, or of some of them."""

    folder: Path
    trained: TrainedClassifier
    data: DataSet
    indices: Tensor
    """(N,) positions among the training images of the data set."""
    labels: Tensor
    """(N,)"""
    features: Tensor
    """(N, A) float64, input of the classifier."""
    weight: Tensor
    """(C, A) float64, of the classifier."""
    bias: Tensor
    """(C,) float64"""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.trained.config.classes

    @cached_property
    def covariance(self) -> FullCovariance:
        """Sigma_c of the features of each class, float64."""
        model = FullCovariance(len(self.classes), self.features.shape[1], dtype=torch.float64)
        model.update(self.features, self.labels)
        return model

    def images(self, rows: Tensor) -> Tensor | Sequence[Tensor]:
        """uint8 images (K, C, H, W) of rows (K,) of ``features``, without transforms."""
        return images_at(self.data.x_train, self.indices[rows.cpu()])

    def network_images(self, rows: Tensor) -> Tensor:
        """uint8 images (K, C, H, W) of rows (K,) as the network sees them, before normalisation."""
        return self.cropped(self.images(rows))

    def cropped(self, images: Tensor | Sequence[Tensor]) -> Tensor:
        """The part of images of any sizes that the network sees: the whole, or the central crop of evaluation."""
        for transform in self.trained.pipeline.transforms:
            if isinstance(transform, ConvertChannels | ResizeCenterCrop):
                images = transform(images)
        return expect_type(images, Tensor)

    def rows_of(self, label: int) -> Tensor:
        """(K,) rows of one class."""
        return (self.labels == label).nonzero().flatten()

    def logits(self, features: Tensor) -> Tensor:
        """(N, C) float64 logits of features (N, A)."""
        return features @ self.weight.T + self.bias


def observe(
    folder: Path,
    data_root: Path | None = None,
    device: torch.device | str = "cpu",
    *,
    most: int | None = None,
    labels: Sequence[int] | None = None,
) -> Observed:
    """Open a finished run of a classifier and compute the features of its training images.

    Args:
        folder: of the run.
        data_root: folder of data sets.
        device: to compute on.
        most: use at most this many images, equally many of each class, drawn with the seed of the run.
        labels: use images of these classes only; of all by default.

    Raises:
        ValueError: not a finished run of a classifier, or its data set has changed.
    """
    trained = load_classifier(folder)
    config = trained.config
    data = run_data(config, data_root)
    indices = trained.task.training(config, data)
    chosen = range(len(config.classes)) if labels is None else sorted(set(labels))
    if labels is not None:
        indices = indices[torch.isin(data.y_train[indices], torch.tensor(chosen))]
    if most is not None and most < len(indices):
        indices = indices[_of_each_class(data.y_train[indices], chosen, most, config.seed)]
    features = features_of(trained, data, indices, device)
    head = trained.network.classifier
    bias = torch.zeros(len(config.classes)) if head.bias is None else head.bias
    return Observed(
        folder,
        trained,
        data,
        indices,
        data.y_train[indices],
        features,
        weight=head.weight.detach().double().cpu(),
        bias=bias.detach().double().cpu(),
    )


def _of_each_class(labels: Tensor, classes: Sequence[int], most: int, seed: int) -> Tensor:
    """Positions of equally many labels of each class; all of a class that has fewer."""
    if most < len(classes):
        raise ValueError(f"most must be at least {len(classes)}, one image of each class, got {most}")
    order = torch.randperm(len(labels), generator=seeds.generator(seed))
    chosen = [order[labels[order] == label][: most // len(classes)] for label in classes]
    return torch.cat(chosen).sort().values


@torch.no_grad()
def features_of(
    trained: TrainedClassifier, data: DataSet, indices: Tensor, device: torch.device | str = "cpu"
) -> Tensor:
    """(N, A) float64 features of training images of a data set."""
    device = torch.device(device)
    network = trained.network.to(device)
    batches = evaluation_batches(data.x_train, data.y_train, indices, trained.pipeline, device)
    return torch.cat([network.features(batch.images.to(trained.config.dtype)).double().cpu() for batch in batches])
