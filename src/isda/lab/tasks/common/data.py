"""Splits and batches of labelled images.

Order and augmentation are functions of (seed, epoch, sample): batches do not depend on the number of processes
or on where a run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from isda.lab.choices import expect_type
from isda.lab.data import DataSet, balanced_sample, hold_out
from isda.lab.data.augment import Compose, Draws
from isda.lab.data.dataset import Images
from isda.lab.data.image_files import ImageFiles
from isda.lab.data.prefetch import PREFETCH_WORKERS, batch_order, prefetch
from isda.lab.devices import send
from isda.lab.tasks.common.generators import GeneratedImages

# The held-out part is the same for every run of a data set, so that settings are chosen on equal terms.
HOLD_OUT_SEED = 0


class SplitConfig(Protocol):
    """What `split_data` reads of a configuration."""

    @property
    def held_out(self) -> int:
        """Number of training images to evaluate on instead of the test images."""

    @property
    def labels(self) -> int | None:
        """Number of training images, equally many of each class; None for all."""

    @property
    def seed(self) -> int:
        """Seed of the draw."""


class EvaluationImages(NamedTuple):
    """The images that a run is evaluated on."""

    images: Images
    labels: Tensor
    indices: Tensor
    """Positions of those that are used."""


def check_held_out(held_out: int | None, total: int) -> int:
    """The number of training images that are not held out."""
    if not 0 <= (held_out or 0) < total:
        raise ValueError(f"held_out must be from 0 to {total - 1} for {total} training images, got {held_out}")
    return total - (held_out or 0)


def count_training_images(held_out: int | None, labels: int | None, total: int) -> int:
    """The number of training images: ``labels`` of those that are not held out, or all of these."""
    left = check_held_out(held_out, total)
    if labels is not None and not 0 < labels <= left:
        raise ValueError(f"labels must be from 1 to {left}, the images not held out, got {labels}")
    return left if labels is None else labels


def check_processes(batch_size: int, world: int) -> None:
    """Raise a ValueError if a process would have no images of a batch."""
    if batch_size < world:
        raise ValueError(f"batch_size must be at least {world}, the number of processes, got {batch_size}")


def training_and_evaluation(data: DataSet, held_out: int) -> tuple[Tensor, EvaluationImages]:
    """(N,) the training images that are not held out, and the evaluation images: those held out, else the test set."""
    if not held_out:
        test = EvaluationImages(data.x_test, data.y_test, torch.arange(len(data.y_test)))
        return torch.arange(len(data.y_train)), test
    training, held = hold_out(data.y_train, held_out, seed=HOLD_OUT_SEED)
    return training, EvaluationImages(data.x_train, data.y_train, held)


def split_data(config: SplitConfig, data: DataSet) -> tuple[Tensor, EvaluationImages]:
    """(N,) the training images of a run, drawn with its seed from those that are not held out; what evaluates it."""
    training, evaluation = training_and_evaluation(data, config.held_out)
    if config.labels is None:
        return training, evaluation
    return training[balanced_sample(data.y_train[training], config.labels, seed=config.seed)], evaluation


@dataclass(frozen=True)
class ImageBatch:
    """The images of one process in one step."""

    images: Tensor
    """(N, C, H, W), the input of the network."""
    targets: Tensor
    """(N,) class indices; (N, C) distributions if a method has mixed the images."""
    indices: Tensor
    """(N,) positions in the data set, on the CPU; those of generated images come after its end."""

    def to(self, dtype: torch.dtype, channels_last: bool) -> ImageBatch:
        """The batch with images of another type and memory format."""
        return replace(self, images=to_network_input(self.images, dtype, channels_last))


def to_network_input(images: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """Images of the type and memory format of a network."""
    images = images.to(dtype)
    return images.contiguous(memory_format=torch.channels_last) if channels_last else images


@dataclass(frozen=True, kw_only=True)
class ImageBatches:
    """The training batches of any epoch, from any step on.

    Args:
        images: of the whole data set, on the training device or on disk.
        labels: int64 (len(images),), on the training device.
        indices: of the training images.
        batch_size: over all processes together; only full batches are used.
        pipeline: augmentation.
        seed: of the run.
        rank: this process.
        world: number of processes; each gets a consecutive part of every batch, sizes differ by at most one.
        device: of the batches.
        workers: threads that prefetch images from disk.
        generated: images that replace some of each batch, with their labels.
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
        check_processes(self.batch_size, self.world)

    def order(self, epoch: int) -> Tensor:
        """The sample indices of an epoch as full batches (steps, batch_size), without generated images."""
        steps = len(self.indices) // self.batch_size
        real = self.batch_size - (self.generated.per_batch if self.generated else 0)
        return batch_order(self.indices, real, seed=self.seed, epoch=epoch, steps=steps)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[ImageBatch]:
        """This process's part of each batch of an epoch, from step ``start`` on."""
        parts = [indices.tensor_split(self.world)[self.rank] for indices in self.order(epoch)]
        if self.generated is not None:
            yield from (self._with_generated(parts[step], epoch, step) for step in range(start, len(parts)))
        elif not isinstance(self.images, ImageFiles):
            yield from (self._prepare(part, epoch) for part in parts[start:])
        else:
            yield from prefetch(partial(self._prepare, epoch=epoch), parts[start:], self.workers)

    def _prepare(self, indices: Tensor, epoch: int) -> ImageBatch:
        return self._augmented(images_at(self.images, indices), self._labels_at(indices), indices, epoch)

    def _with_generated(self, indices: Tensor, epoch: int, step: int) -> ImageBatch:
        """Real images first, then generated ones, all of them augmented."""
        real = expect_type(self.images, Tensor)
        part = expect_type(self.generated, GeneratedImages).part(epoch, step, self.rank, self.world)
        images = torch.cat([real[send(indices, real.device)], part.images.to(real.device)])
        labels = torch.cat([self._labels_at(indices), send(part.labels, self.labels.device)])
        return self._augmented(images, labels, torch.cat([indices, len(self.images) + part.numbers]), epoch)

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
    """A batch of the samples of each part, without randomness; images on disk are prefetched."""

    def prepare(part: Tensor) -> ImageBatch:
        return ImageBatch(pipeline(images_at(images, part)).to(device), labels[part.to(labels.device)].to(device), part)

    return prefetch(prepare, parts, workers) if isinstance(images, ImageFiles) else map(prepare, parts)


def images_at(images: Images, indices: Tensor) -> Tensor | list[Tensor]:
    """The images at the indices: a tensor, or a list if they are on disk and may differ in size."""
    if isinstance(images, ImageFiles):
        return [images[index] for index in indices.tolist()]
    return images[send(indices, images.device)]
