"""Batches of images with their objects; order and mirroring are functions of (seed, epoch, image)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isda.lab.data.coco import CocoPart
from isda.lab.data.prefetch import batch_order, prefetch
from isda.lab.devices import send
from isda.lab.seeds import generator, mix
from isda.lab.tasks.common.data import check_processes

MIRROR = 0.5
"""The probability that an image is mirrored."""


@dataclass(frozen=True)
class DetectionBatch:
    """The images of one process in one step, with their objects."""

    images: list[Tensor]
    """(3, H, W) each, in 0..1."""
    targets: list[dict[str, Any]]

    def to(self, device: torch.device, dtype: torch.dtype) -> DetectionBatch:
        """The batch on a device, with images in 0..1."""
        images = [send(image, device).to(dtype) / 255 for image in self.images]
        return DetectionBatch(images, [_sent(target, device, dtype) for target in self.targets])


def _sent(target: dict[str, Any], device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    moved = {key: send(value, device) if isinstance(value, Tensor) else value for key, value in target.items()}
    return moved | {"boxes": moved["boxes"].to(dtype)}


def mirrored(image: Tensor, target: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """An image and its objects, left for right."""
    left, top, right, bottom = target["boxes"].unbind(1)
    width = image.shape[-1]
    flipped = target | {"boxes": torch.stack([width - right, top, width - left, bottom], 1)}
    if "masks" in target:
        flipped["masks"] = target["masks"].flip(-1)
    return image.flip(-1), flipped


@dataclass(frozen=True, kw_only=True)
class DetectionBatches:
    """The training batches of any epoch, from any step on; images without objects are skipped.

    Args:
        part: the images.
        masks: whether targets have masks.
        batch_size: over all processes together; only full batches are used.
        seed: of the run.
        rank: this process.
        world: number of processes; each gets a consecutive part of every batch, sizes differ by at most one.
        workers: prefetching threads.
    """

    part: CocoPart
    masks: bool
    batch_size: int
    seed: int
    rank: int = 0
    world: int = 1
    workers: int = 4

    def __post_init__(self) -> None:
        check_processes(self.batch_size, self.world)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[DetectionBatch]:
        """This process's part of each batch of an epoch, from step ``start`` on."""
        marked = torch.tensor(self.part.marked)
        steps = batch_order(marked, self.batch_size, seed=self.seed, epoch=epoch)[start:]
        return prefetch(lambda indices: self._prepare(indices, epoch), list(steps), self.workers)

    def _prepare(self, indices: Tensor, epoch: int) -> DetectionBatch:
        # Images are padded to one size in all processes.
        sizes = [(self.part.images[i].height, self.part.images[i].width) for i in indices.tolist()]
        images, targets = [], []
        for index in indices.tensor_split(self.world)[self.rank].tolist():
            key = mix(self.seed, epoch, index)
            image, target = self.part.image(index), self.part.target(index, self.masks)
            if float(torch.rand((), generator=generator(key), device="cpu")) < MIRROR:
                image, target = mirrored(image, target)
            images.append(image)
            targets.append(target | {"key": key, "batch_sizes": sizes})
        return DetectionBatch(images, targets)


def evaluation_images(part: CocoPart, indices: Tensor, workers: int) -> Iterator[tuple[int, Tensor]]:
    """Position and image, one at a time: detections must not depend on the sizes of other images."""
    return prefetch(lambda index: (index, part.image(index)), indices.tolist(), workers)
