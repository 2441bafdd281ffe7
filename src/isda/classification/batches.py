"""Batches of augmented images, the same whatever the number of processes and wherever a run is taken up again.

The order of an epoch and the augmentation of a sample are functions of (seed, epoch, sample): there is no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from isda.data.ahead import WORKERS, ahead
from isda.data.augment import Compose, Draws
from isda.data.dataset import Images
from isda.data.image_files import ImageFiles
from isda.data.order import batch_order
from isda.devices import send

__all__ = ["Batch", "Batches", "evaluation_batches", "ready", "take"]


@dataclass(frozen=True)
class Batch:
    """What one process sees of one step."""

    images: Tensor
    """(N, C, H, W) as the network takes them."""
    targets: Tensor
    """(N,) class indices; (N, C) distributions where a method has mixed the images."""
    indices: Tensor
    """(N,) positions in the data set, on the CPU."""

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

    def __post_init__(self) -> None:
        if self.batch_size < self.world:
            raise ValueError(
                f"batch_size must be at least {self.world}, the number of processes, got {self.batch_size}"
            )

    def order(self, epoch: int) -> Tensor:
        """The sample indices of an epoch as full batches (steps, batch_size)."""
        return batch_order(self.indices, self.batch_size, seed=self.seed, epoch=epoch)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This process's part of each batch of an epoch, from step ``start`` on."""
        parts = [indices.tensor_split(self.world)[self.rank] for indices in self.order(epoch)[start:]]
        if not isinstance(self.images, ImageFiles):
            yield from (self._prepare(part, epoch) for part in parts)
            return
        yield from ahead(partial(self._prepare, epoch=epoch), parts, self.workers)

    def _prepare(self, indices: Tensor, epoch: int) -> Batch:
        draws = Draws.for_samples(indices, seed=self.seed, epoch=epoch)
        images = send(self.pipeline(take(self.images, indices), draws), torch.device(self.device))
        return Batch(images, self.labels[send(indices, self.labels.device)], indices)


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

    def prepare(part: Tensor) -> Batch:
        return Batch(pipeline(take(images, part)).to(device), labels[part.to(labels.device)].to(device), part)

    if isinstance(images, ImageFiles):
        # Decoded images are large, and many: fewer at a time, and several batches at once.
        return ahead(prepare, indices.split(min(size, 100)), workers)
    return map(prepare, indices.split(size))


def take(images: Images, indices: Tensor) -> Tensor | list[Tensor]:
    """The images at the indices: a tensor, or a list where they are decoded and may differ in size."""
    if isinstance(images, ImageFiles):
        return [images[index] for index in indices.tolist()]
    return images[send(indices, images.device)]
