"""Batches of augmented crops with labelled pixels; order and augmentation are functions of (seed, epoch, sample)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isda.lab.data.augment import Draws, Normalize, ScaleMirrorCrop
from isda.lab.data.prefetch import PREFETCH_WORKERS, batch_order, prefetch
from isda.lab.data.segmentation import SegmentationPart
from isda.lab.devices import on_host, send
from isda.lab.tasks.common.data import check_processes, to_network_input
from isda.lab.tasks.segmentation.settings import SegmentationConfig


@dataclass(frozen=True)
class SegmentationBatch:
    """The crops of one process in one step."""

    images: Tensor
    """(N, 3, H, W), the input of the network."""
    targets: Tensor
    """(N, H, W) classes, 255 for ignored pixels."""
    indices: Tensor
    """(N,) positions in the part, on the CPU."""

    def on(self, device: torch.device) -> SegmentationBatch:
        """The batch on a device."""
        return replace(self, images=send(self.images, device), targets=send(self.targets, device))

    def to(self, dtype: torch.dtype, channels_last: bool) -> SegmentationBatch:
        """The batch with images of another type and memory format."""
        return replace(self, images=to_network_input(self.images, dtype, channels_last))


class SegmentationBatches:
    """The training batches of any epoch, from any step on.

    Args:
        part: the images.
        config: of the run.
        rank: this process.
        world: number of processes; each gets a consecutive part of every batch, sizes differ by at most one.
        device: of the batches.
        workers: prefetching threads.
    """

    def __init__(
        self,
        part: SegmentationPart,
        config: SegmentationConfig,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        workers: int = PREFETCH_WORKERS,
    ) -> None:
        check_processes(config.batch_size, world)
        self.part, self.config, self.rank, self.world = part, config, rank, world
        self.device, self.workers = torch.device(device), workers
        scales = config.smallest_scale, config.largest_scale
        self.augment = ScaleMirrorCrop(config.crop_size, scales, config.mirror, fill=config.mean)
        self.normalise = Normalize(config.mean, config.std)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[SegmentationBatch]:
        """This process's part of each batch of an epoch, from step ``start`` on."""
        mine = [indices.tensor_split(self.world)[self.rank] for indices in self.order(epoch)[start:]]

        def prepare(indices: Tensor) -> SegmentationBatch:
            return self._prepare(indices, epoch)

        # If the CPU trains too, threads would only compete with it.
        inline = on_host(self.device) and self.part.decoded is not None
        for batch in map(prepare, mine) if inline else prefetch(prepare, mine, self.workers):
            yield batch.on(self.device)

    def order(self, epoch: int) -> Tensor:
        """The images of an epoch in batches (steps, batch_size)."""
        config, indices = self.config, torch.arange(len(self.part))
        steps = len(indices) // config.batch_size
        return batch_order(indices, config.batch_size, seed=config.seed, epoch=epoch, steps=steps)

    def _prepare(self, indices: Tensor, epoch: int) -> SegmentationBatch:
        draws = Draws.for_samples(indices, seed=self.config.seed, epoch=epoch)
        images, targets = self.augment([self.part[i] for i in indices.tolist()], draws)
        return SegmentationBatch(self.normalise(images), targets, indices)


def evaluation_batches(
    part: SegmentationPart,
    indices: Tensor,
    config: SegmentationConfig,
    device: torch.device,
    workers: int = PREFETCH_WORKERS,
) -> Iterator[SegmentationBatch]:
    """Whole images in order, without randomness; several at once if they are in memory.

    Args:
        part: the images.
        indices: (N,) their positions.
        config: of the run.
        device: of the batches.
        workers: prefetching threads.
    """
    normalise = Normalize(config.mean, config.std)

    def prepare(some: Sequence[int]) -> SegmentationBatch:
        images, labels = zip(*(part[i] for i in some), strict=True)
        return SegmentationBatch(normalise(torch.stack(images)), torch.stack(labels).long(), torch.tensor(some))

    if part.decoded is None:
        batches = prefetch(prepare, [[i] for i in indices.tolist()], workers)
    else:
        # About as many pixels as in a training step, which needs more memory for each.
        height, width = config.crop_size
        at_once = max(1, config.batch_size * height * width // part.decoded[1][0].numel())
        batches = map(prepare, (few.tolist() for few in indices.split(at_once)))
    for batch in batches:
        yield batch.on(device)
