"""Splits and batches of labelled images.

Order and augmentation are functions of (seed, epoch, sample): batches do not depend on the number of processes
or on where a run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from isda._utils.devices import send
from isda._utils.errors import expect_type
from isda.data import DataSet, balanced_sample, hold_out, long_tailed
from isda.data.augment import Compose, Draws
from isda.data.dataset import Images
from isda.data.image_files import ImageFiles
from isda.data.prefetch import PREFETCH_WORKERS, batch_order, prefetch
from isda.tasks.classification.generated import GeneratedImages
from isda.tasks.classification.settings import ClassificationConfig

# The held-out part is the same for every run of a data set, so that settings are chosen on equal terms.
HOLD_OUT_SEED = 0


class EvaluationImages(NamedTuple):
    """The images that measure the error."""

    images: Images
    labels: Tensor
    indices: Tensor
    """Which of them."""


def training_and_evaluation(data: DataSet, held_out: int) -> tuple[Tensor, EvaluationImages]:
    """(N,) the training images that a run may see, and what it is judged by: those held out, else the test images."""
    if not held_out:
        return torch.arange(len(data.y_train)), EvaluationImages(
            data.x_test, data.y_test, torch.arange(len(data.y_test))
        )
    training, held = hold_out(data.y_train, held_out, seed=HOLD_OUT_SEED)
    return training, EvaluationImages(data.x_train, data.y_train, held)


def split_data(config: ClassificationConfig, data: DataSet) -> tuple[Tensor, EvaluationImages]:
    """Hold out what the configuration says, then draw its labelled subset from the rest with its seed."""
    training, evaluation = training_and_evaluation(data, config.held_out)
    labels = data.y_train[training]
    if config.imbalance is not None:
        return training[long_tailed(labels, config.imbalance, seed=config.seed, size=config.labels)], evaluation
    if config.labels is None:
        return training, evaluation
    return training[balanced_sample(labels, config.labels, seed=config.seed)], evaluation


@dataclass(frozen=True)
class ImageBatch:
    """What one process sees of one step."""

    images: Tensor
    """(N, C, H, W) as the network takes them."""
    targets: Tensor
    """(N,) class indices; (N, C) distributions where a method has mixed the images."""
    indices: Tensor
    """(N,) positions in the data set, on the CPU; beyond its end those of generated images."""

    def to(self, dtype: torch.dtype, channels_last: bool) -> ImageBatch:
        """The batch with images of another type and, if asked for, another order in memory."""
        return replace(self, images=to_network_input(self.images, dtype, channels_last))


def to_network_input(images: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """Images as a network of that type takes them."""
    images = images.to(dtype)
    return images.contiguous(memory_format=torch.channels_last) if channels_last else images


@dataclass(frozen=True, kw_only=True)
class ImageBatches:
    """The training batches of any epoch, from any step on.

    Args:
        images: of the whole data set, on the training device or on disk.
        labels: int64 (len(images),), on the training device.
        indices: which of them to train on.
        batch_size: over all processes together; only full batches are used.
        pipeline: augmentation.
        seed: of the run.
        rank: this process.
        world: number of processes; each gets a consecutive part of every batch, sizes differ by at most one.
        device: where batches go.
        workers: threads that decode and augment ahead, for images on disk.
        generated: images that take the place of some of each batch, with their labels.
    """

    images: Images
    labels: Tensor
    indices: Tensor
    batch_size: int
    pipeline: Compose
    seed: int
    rank: int = 0
    world: int = 1
    device: torch.device | str = "cpu"
    workers: int = PREFETCH_WORKERS
    generated: GeneratedImages | None = None

    def __post_init__(self) -> None:
        if self.batch_size < self.world:
            raise ValueError(
                f"batch_size must be at least {self.world}, the number of processes, got {self.batch_size}"
            )

    def order(self, epoch: int) -> Tensor:
        """The sample indices of an epoch as full batches (steps, batch_size), without generated images."""
        steps = len(self.indices) // self.batch_size
        real = self.batch_size - (self.generated.per_batch if self.generated else 0)
        return batch_order(self.indices, real, seed=self.seed, epoch=epoch)[:steps]

    def epoch(self, epoch: int, start: int = 0) -> Iterator[ImageBatch]:
        """This process's part of each batch of an epoch, from step ``start`` on."""
        parts = [indices.tensor_split(self.world)[self.rank] for indices in self.order(epoch)]
        if self.generated is not None:
            yield from (self._with_generated(parts[step], epoch, step) for step in range(start, len(parts)))
        elif not isinstance(self.images, ImageFiles):
            yield from (self._prepare(part, epoch) for part in parts[start:])
        else:
            yield from prefetch(partial(self._prepare, epoch=epoch), parts[start:], self.workers)

    def samples(self, indices: Tensor, epoch: int) -> ImageBatch:
        """Any training images (N,) by their positions in the data set, augmented as in an epoch."""
        return self._prepare(indices, epoch)

    def _prepare(self, indices: Tensor, epoch: int) -> ImageBatch:
        return self._augmented(images_at(self.images, indices), self._labels_at(indices), indices, epoch)

    def _with_generated(self, indices: Tensor, epoch: int, step: int) -> ImageBatch:
        """Real images first, then generated ones, all of them augmented."""
        real = expect_type(self.images, Tensor)
        made = expect_type(self.generated, GeneratedImages).part(epoch, step, self.rank, self.world)
        images = torch.cat([real[send(indices, real.device)], made.images.to(real.device)])
        labels = torch.cat([self._labels_at(indices), send(made.labels, self.labels.device)])
        return self._augmented(images, labels, torch.cat([indices, len(self.images) + made.numbers]), epoch)

    def _augmented(self, images: Tensor | list[Tensor], labels: Tensor, indices: Tensor, epoch: int) -> ImageBatch:
        draws = Draws.for_samples(indices, seed=self.seed, epoch=epoch)
        return ImageBatch(send(self.pipeline(images, draws), torch.device(self.device)), labels, indices)

    def _labels_at(self, indices: Tensor) -> Tensor:
        return self.labels[send(indices, self.labels.device)]


def evaluation_batches(
    images: Images,
    labels: Tensor,
    indices: Tensor,
    pipeline: Compose,
    device: torch.device,
    *,
    size: int = 500,
    workers: int = PREFETCH_WORKERS,
) -> Iterator[ImageBatch]:
    """The given samples in order, without randomness."""
    # Decoded images are large, and many: fewer at a time.
    parts = indices.split(min(size, 100) if isinstance(images, ImageFiles) else size)
    return batches_of_parts(images, labels, parts, pipeline, device, workers=workers)


def batches_of_parts(
    images: Images,
    labels: Tensor,
    parts: Sequence[Tensor],
    pipeline: Compose,
    device: torch.device,
    *,
    workers: int = PREFETCH_WORKERS,
) -> Iterator[ImageBatch]:
    """A batch of the samples of each part, without randomness; several at once where images are decoded."""

    def prepare(part: Tensor) -> ImageBatch:
        return ImageBatch(pipeline(images_at(images, part)).to(device), labels[part.to(labels.device)].to(device), part)

    return prefetch(prepare, parts, workers) if isinstance(images, ImageFiles) else map(prepare, parts)


def images_at(images: Images, indices: Tensor) -> Tensor | list[Tensor]:
    """The images at the indices: a tensor, or a list where they are decoded and may differ in size."""
    if isinstance(images, ImageFiles):
        return [images[index] for index in indices.tolist()]
    return images[send(indices, images.device)]
