"""Images of a trained generator in every batch (Table 5 of the paper).

The images of a step are a function of (seed, epoch, step) and do not depend on the number of processes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from isda._utils.seeds import generator
from isda.data import DataSet
from isda.networks.generative import ImageGenerator
from isda.tasks.classification.settings import ClassificationConfig, ClassificationSettings
from isda.tasks.gan.generators import TrainedGenerator, load_generator, make_images

GENERATED_SHARE = 1 / 6
"""Of a batch: the paper's, found on its validation set."""

# Apart from the seeds of orders and steps.
_GENERATED = 0x67656E65


class GeneratedPart(NamedTuple):
    """What one process gets in one step."""

    images: Tensor
    """uint8 (N, C, H, W)."""
    labels: Tensor
    """(N,) on the CPU."""
    numbers: Tensor
    """(N,) their places among all generated images of the epoch, on the CPU."""


@dataclass(frozen=True)
class GeneratedImages:
    """The generated images of any step; classes follow one another, so that all are equally frequent.

    Args:
        network: the generator, on the device where images are wanted.
        per_batch: images of a step, over all processes together.
        seed: of the run.
    """

    network: ImageGenerator
    per_batch: int
    seed: int

    def part(self, epoch: int, step: int, rank: int = 0, world: int = 1) -> GeneratedPart:
        """This process's part; the last processes have one more where it does not divide, as real images are dealt
        to the first.
        """
        numbers = step * self.per_batch + torch.arange(self.per_batch)
        labels = numbers % self.network.num_classes
        images = make_images(self.network, labels, generator(self.seed, _GENERATED, epoch, step))
        mine = torch.arange(self.per_batch).flip(0).tensor_split(world)[world - 1 - rank].flip(0)
        first, last = (int(mine[0]), int(mine[-1]) + 1) if len(mine) else (0, 0)
        return GeneratedPart(images[first:last], labels[first:last], numbers[first:last])


def count_per_batch(share: float | None, batch_size: int) -> int:
    """How many images of a batch are generated; at least one is, and one is not.

    Example:
        >>> count_per_batch(None, 128)
        21
    """
    share = GENERATED_SHARE if share is None else share
    if not 0 < share < 1:
        raise ValueError(f"generated_share must lie strictly between 0 and 1, got {share}")
    count = round(share * batch_size)
    if not 0 < count < batch_size:
        raise ValueError(f"generated_share must leave both kinds of images in a batch of {batch_size}, got {share}")
    return count


def compatible_generator(folder: Path, data: DataSet, settings: ClassificationSettings) -> TrainedGenerator:
    """The generator of a run, if its images can stand beside those of a data set.

    Raises:
        ValueError: no such run, other classes or another size of images, or a generator that has seen the images that
            will judge the classifier.
    """
    made = load_generator(folder)
    network, size = made.network, data.image_size
    told = f"generated must be a generator of the classes and images of {data.name}, got {folder}"
    if made.classes != data.classes:
        raise ValueError(f"{told}, which has {len(made.classes)} classes of {made.data}")
    if (network.channels, network.size, network.size) != (data.channels, *(size or ())):
        raise ValueError(f"{told}, whose images are {network.channels}x{network.size}x{network.size}")
    if made.data_digest == data.digest:
        _check_seen(made, settings)
    return made


def _check_seen(made: TrainedGenerator, settings: ClassificationSettings) -> None:
    """Neither images that judge nor further labels may come in through the generator unnoticed."""
    held_out = settings.held_out or 0
    if held_out not in (0, made.held_out):
        raise ValueError(
            f"generated must be a generator that was trained with held_out={held_out} as well, this one with "
            f"{made.held_out}: it has seen images that judge"
        )
    if settings.labels is not None and (made.labels, made.seed) != (settings.labels, settings.seed or 0):
        images = "all images" if made.labels is None else f"{made.labels} images drawn with seed {made.seed}"
        warnings.warn(
            f"the generator has learnt from {images}, the classifier gets {settings.labels} drawn with seed "
            f"{settings.seed or 0}: more labels than it is said to have",
            stacklevel=4,
        )


def generated_images(config: ClassificationConfig, device: torch.device) -> GeneratedImages | None:
    """Those of a configuration, on a device; None where it has none.

    Raises:
        ValueError: the generator is not the one that the run was planned with.
    """
    if not config.generated:
        return None
    made = load_generator(Path(config.generated))
    if made.sha256 != config.generated_sha256:
        raise ValueError(f"{config.generated} holds another generator than when the run was planned")
    return GeneratedImages(made.network.to(device), config.generated_per_batch, config.seed)
