"""Batches of real images, and the latent vectors of generated ones, as functions of (seed, epoch) or (seed, step)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isda.lab.data.prefetch import batch_order
from isda.lab.devices import send
from isda.lab.engine.processes import Processes
from isda.lab.networks.generative import ImageGenerator, from_pixels
from isda.lab.seeds import generator


class RealBatch(NamedTuple):
    """Real images of one process in one step."""

    images: Tensor
    """(N, C, H, W) in [-1, 1]."""
    labels: Tensor
    """(N,) on the CPU."""


class LatentBatch(NamedTuple):
    """Inputs of the generator of one process in one step."""

    latent: Tensor
    """(N, noise + codes)."""
    labels: Tensor
    """(N,) on the CPU."""
    share: Tensor
    """(N,) uniform in [0, 1): the interpolation of a gradient penalty between a real and a generated image."""


@dataclass(frozen=True, kw_only=True)
class RealBatches:
    """The batches of any epoch, from any step on.

    Args:
        images: uint8 (M, C, H, W) of the whole data set, on the training device.
        labels: (M,) on the CPU.
        indices: of the training images.
        batch_size: over all processes together.
        seed: of the run.
        balanced: whether every batch has equally many images of each class.
        classes: K.
        dtype: of the images of a batch.
        processes: that train together.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    batch_size: int
    seed: int
    balanced: bool
    classes: int
    dtype: torch.dtype
    processes: Processes

    def order(self, epoch: int) -> Tensor:
        """(steps, batch_size) the images of an epoch."""
        if not self.balanced:
            return batch_order(self.indices, self.batch_size, seed=self.seed, epoch=epoch)
        by_class = [self.indices[self.labels[self.indices] == label] for label in range(self.classes)]
        steps = len(self.indices) // self.batch_size
        return balanced_order(by_class, steps, self.batch_size // self.classes, seed=self.seed, epoch=epoch)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[RealBatch]:
        """This process's part of each batch of an epoch, from step ``start`` on."""
        for indices in self.order(epoch)[start:]:
            mine = indices.tensor_split(self.processes.world)[self.processes.rank]
            images = self.images[send(mine, self.images.device)]
            yield RealBatch(from_pixels(images, self.dtype), self.labels[mine])


def balanced_order(by_class: list[Tensor], steps: int, each: int, *, seed: int, epoch: int) -> Tensor:
    """(steps, each x classes) batches with ``each`` images of every class, class after class.

    The images of a class are shuffled, and repeated if there are too few of them.

    Example:
        >>> order = balanced_order([torch.tensor([0, 2]), torch.tensor([1])], steps=1, each=2, seed=0, epoch=0)
        >>> sorted(order.flatten().tolist())
        [0, 1, 1, 2]
    """
    columns = []
    for label, members in enumerate(by_class):
        source = generator(seed, epoch, label)
        rounds = -(-steps * each // len(members))
        shuffled = torch.cat([members[torch.randperm(len(members), generator=source)] for _ in range(rounds)])
        columns.append(shuffled[: steps * each])
    return torch.stack(columns, 1).view(steps, each * len(by_class))


def draw_latents(network: ImageGenerator, count: int, turn: tuple[int, int, int], processes: Processes) -> LatentBatch:
    """This process's part of the latent vectors and classes of one turn of a step.

    Image i of step t is of class (t N + i) mod K.

    Args:
        network: the generator, on its device.
        count: N, of all processes together.
        turn: the run's seed, the step, and the number of the turn.
        processes: that train together.
    """
    source, weight = generator(*turn), next(network.parameters())
    labels = (turn[1] * count + torch.arange(count)) % network.num_classes
    whole = network.draw(count, source), labels, torch.rand(count, generator=source)
    latent, mine, share = (part.tensor_split(processes.world)[processes.rank] for part in whole)
    latent, share = (send(part, weight.device, weight.dtype) for part in (latent, share))
    return LatentBatch(latent, mine, share)
