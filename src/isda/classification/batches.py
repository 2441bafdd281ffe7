"""Batches of augmented images, the same whatever the number of processes and wherever a run is taken up again.

The order of an epoch and the augmentation of a sample are functions of (seed, epoch, sample): there is no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from isda.classification.generated import GeneratedImages
from isda.data.ahead import WORKERS, ahead
from isda.data.augment import Compose, Draws
from isda.data.dataset import Images
from isda.data.image_files import ImageFiles
from isda.data.order import batch_order
from isda.devices import send
from isda.errors import of_type

__all__ = ["Batch", "Batches", "evaluation_batches", "parts_as_batches", "ready", "take"]


@dataclass(frozen=True)
class Batch:
    """What one process sees of one step."""

    images: Tensor
    """(N, C, H, W) as the network takes them."""
    targets: Tensor
    """(N,) class indices; (N, C) distributions where a method has mixed the images."""
    indices: Tensor
    """(N,) positions in the data set, on the CPU; beyond its end those of generated images."""

    def to(self, dtype: torch.dtype, channels_last: bool) -> Batch:
        """The batch with images of another type and, if asked for, another order in memory."""
        return replace(self, images=ready(self.images, dtype, channels_last))


def ready(images: Tensor, dtype: torch.dtype, channels_last: bool) -> Tensor:
    """Images as a network of that type takes them."""
    images = images.to(dtype)
    return images.contiguous(memory_format=torch.channels_last) if channels_last else images


@dataclass(frozen=True, kw_only=True)
class Batches:
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
    workers: int = WORKERS
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

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This process's part of each batch of an epoch, from step ``start`` on."""
        parts = [indices.tensor_split(self.world)[self.rank] for indices in self.order(epoch)]
        if self.generated is not None:
            yield from (self._with_generated(parts[step], epoch, step) for step in range(start, len(parts)))
        elif not isinstance(self.images, ImageFiles):
            yield from (self._prepare(part, epoch) for part in parts[start:])
        else:
            yield from ahead(partial(self._prepare, epoch=epoch), parts[start:], self.workers)

    def samples(self, indices: Tensor, epoch: int) -> Batch:
        """Any training images (N,) by their positions in the data set, augmented as in an epoch."""
        return self._prepare(indices, epoch)

    def _prepare(self, indices: Tensor, epoch: int) -> Batch:
        return self._augmented(take(self.images, indices), self._labels_at(indices), indices, epoch)

    def _with_generated(self, indices: Tensor, epoch: int, step: int) -> Batch:
        """Real images first, then generated ones, all of them augmented."""
        real = of_type(self.images, Tensor)
        made = of_type(self.generated, GeneratedImages).part(epoch, step, self.rank, self.world)
        images = torch.cat([real[send(indices, real.device)], made.images.to(real.device)])
        labels = torch.cat([self._labels_at(indices), send(made.labels, self.labels.device)])
        return self._augmented(images, labels, torch.cat([indices, len(self.images) + made.numbers]), epoch)

    def _augmented(self, images: Tensor | list[Tensor], labels: Tensor, indices: Tensor, epoch: int) -> Batch:
        draws = Draws.for_samples(indices, seed=self.seed, epoch=epoch)
        return Batch(send(self.pipeline(images, draws), torch.device(self.device)), labels, indices)

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
    workers: int = WORKERS,
) -> Iterator[Batch]:
    """The given samples in order, without randomness."""
    # Decoded images are large, and many: fewer at a time.
    parts = indices.split(min(size, 100) if isinstance(images, ImageFiles) else size)
    return parts_as_batches(images, labels, parts, pipeline, device, workers=workers)


def parts_as_batches(
    images: Images,
    labels: Tensor,
    parts: Sequence[Tensor],
    pipeline: Compose,
    device: torch.device,
    *,
    workers: int = WORKERS,
) -> Iterator[Batch]:
    """A batch of the samples of each part, without randomness; several at once where images are decoded."""

    def prepare(part: Tensor) -> Batch:
        return Batch(pipeline(take(images, part)).to(device), labels[part.to(labels.device)].to(device), part)

    return ahead(prepare, parts, workers) if isinstance(images, ImageFiles) else map(prepare, parts)


def take(images: Images, indices: Tensor) -> Tensor | list[Tensor]:
    """The images at the indices: a tensor, or a list where they are decoded and may differ in size."""
    if isinstance(images, ImageFiles):
        return [images[index] for index in indices.tolist()]
    return images[send(indices, images.device)]
