"""Batches of augmented images with labelled pixels, the same for any number of processes and from any step on.

The order of an epoch and the augmentation of a sample are functions of (seed, epoch, sample): there is no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isda.classification.batches import ready
from isda.data.ahead import WORKERS, ahead
from isda.data.augment import Draws, Normalize, ScaleMirrorCrop
from isda.data.order import batch_order
from isda.data.segmentation import Part
from isda.devices import on_host, send
from isda.segmentation.config import Config

__all__ = ["Batch", "Batches", "evaluation_batches"]


@dataclass(frozen=True)
class Batch:
    """What one process sees of one step."""

    images: Tensor
    """(N, 3, H, W) as the network takes them."""
    targets: Tensor
    """(N, H, W) classes, 255 where a pixel does not count."""
    indices: Tensor
    """(N,) positions in the part, on the CPU."""

    def on(self, device: torch.device) -> Batch:
        """The batch on a device."""
        return replace(self, images=send(self.images, device), targets=send(self.targets, device))

    def to(self, dtype: torch.dtype, channels_last: bool) -> Batch:
        """The batch with images of another type and, if asked for, another order in memory."""
        return replace(self, images=ready(self.images, dtype, channels_last))


class Batches:
    """The training batches of any epoch, from any step on.

    Args:
        part: the images.
        config: of the run.
        rank: this process.
        world: number of processes; each gets a consecutive part of every batch, sizes differ by at most one.
        device: where batches go.
        workers: threads that decode and augment ahead.
    """

    def __init__(
        self,
        part: Part,
        config: Config,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        workers: int = WORKERS,
    ) -> None:
        if config.batch_size < world:
            raise ValueError(f"batch_size must be at least {world}, the number of processes, got {config.batch_size}")
        self.part, self.config, self.rank, self.world = part, config, rank, world
        self.device, self.workers = torch.device(device), workers
        scales = config.smallest_scale, config.largest_scale
        self.augment = ScaleMirrorCrop(config.crop_size, scales, config.mirror, fill=config.mean)
        self.normalise = Normalize(config.mean, config.std)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This process's part of each batch of an epoch, from step ``start`` on."""
        config = self.config
        order = batch_order(torch.arange(len(self.part)), config.batch_size, seed=config.seed, epoch=epoch)
        mine = [indices.tensor_split(self.world)[self.rank] for indices in order[start:]]

        def prepare(indices: Tensor) -> Batch:
            return self._prepare(indices, epoch)

        # Where the CPU trains, too, threads would only take its time.
        inline = on_host(self.device) and self.part.decoded is not None
        for batch in map(prepare, mine) if inline else ahead(prepare, mine, self.workers):
            yield batch.on(self.device)

    def _prepare(self, indices: Tensor, epoch: int) -> Batch:
        draws = Draws.for_samples(indices, seed=self.config.seed, epoch=epoch)
        images, targets = self.augment([self.part[i] for i in indices.tolist()], draws)
        return Batch(self.normalise(images), targets, indices)


def evaluation_batches(
    part: Part, indices: Tensor, config: Config, device: torch.device, workers: int = WORKERS
) -> Iterator[Batch]:
    """Whole images in order, several at once where they are alike and small; without randomness.

    Args:
        part: the images.
        indices: (N,) which of them.
        config: of the run.
        device: where they go.
        workers: threads that decode ahead.
    """
    normalise = Normalize(config.mean, config.std)

    def prepare(some: Sequence[int]) -> Batch:
        images, labels = zip(*(part[i] for i in some), strict=True)
        return Batch(normalise(torch.stack(images)), torch.stack(labels).long(), torch.tensor(some))

    if part.decoded is None:
        made = ahead(prepare, [[i] for i in indices.tolist()], workers)
    else:
        # About the memory of a training step, which keeps more of each image.
        height, width = config.crop_size
        at_once = max(1, config.batch_size * height * width // part.decoded[1][0].numel())
        made = map(prepare, (some.tolist() for some in indices.split(at_once)))
    for batch in made:
        yield batch.on(device)
