"""Load a trained generator from its run folder, and generate images with a seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from isda.lab.devices import send
from isda.lab.engine.run_records import check_task, config_errors, load_weights, open_finished_run
from isda.lab.files import file_digest
from isda.lab.networks.generative import ImageGenerator, create_generator, to_pixels
from isda.lab.seeds import generator

GENERATION_TASK = "generation"
"""The name of the task of `isda.lab.tasks.gan`."""

IMAGES_AT_ONCE = 500

# Distinguishes the random numbers of generated images from those of orders and steps.
_GENERATED = 0x67656E65


@dataclass(frozen=True)
class TrainedGenerator:
    """A generator with its final weights, and what other tasks read of its configuration."""

    folder: Path
    network: ImageGenerator
    method: str
    data: str
    classes: tuple[str, ...]
    labels: int | None
    """Number of labelled training images; None for all that were not held out."""
    held_out: int
    """Number of training images that were held out."""
    seed: int
    data_digest: str
    """Digest of its data set."""
    sha256: str
    """Digest of its weights."""


@torch.no_grad()
def make_images(network: ImageGenerator, labels: Tensor, source: torch.Generator) -> Tensor:
    """(N, C, H, W) uint8 images of classes (N,), on the device of the network; latent vectors are drawn on the CPU."""
    weight = next(network.parameters())
    latent = send(network.draw(len(labels), source), weight.device, weight.dtype)
    parts = zip(latent.split(IMAGES_AT_ONCE), labels.split(IMAGES_AT_ONCE), strict=True)
    return torch.cat([to_pixels(network(vectors, classes)) for vectors, classes in parts])


def load_generator(folder: Path) -> TrainedGenerator:
    """The generator of a finished run, in eval mode on the CPU.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged files.
    """
    run, stored = open_finished_run(folder)
    check_task(run, stored, GENERATION_TASK, "a generator")
    with config_errors(run, "generator"):
        options = {name: stored[name] for name in ("channels", "noise", "codes", "width")}
        size = stored["image_size"][0]
        network = create_generator(stored["network"], len(stored["classes"]), size=size, **options)
        network = network.double() if stored["precision"] == "float64" else network
        fields = {name: stored[name] for name in ("method", "data", "labels", "held_out", "seed", "data_digest")}
    load_weights(run, network, str(stored["network"]))
    return TrainedGenerator(
        folder.absolute(),
        network.eval().requires_grad_(False),
        classes=tuple(stored["classes"]),
        sha256=file_digest(run.weights_file),
        **fields,
    )


class GeneratedPart(NamedTuple):
    """The generated images of one process in one step."""

    images: Tensor
    """uint8 (N, C, H, W)."""
    labels: Tensor
    """(N,) on the CPU."""
    numbers: Tensor
    """(N,) their positions among all generated images of the epoch, on the CPU."""


@dataclass(frozen=True)
class GeneratedImages:
    """The generated images of any step, a function of (seed, epoch, step); the classes take turns.

    Args:
        network: the generator, on its device.
        per_batch: images of a step, over all processes together.
        seed: of the run.
    """

    network: ImageGenerator
    per_batch: int
    seed: int

    def part(self, epoch: int, step: int, rank: int = 0, world: int = 1) -> GeneratedPart:
        """This process's part; the last processes get the remainder, as the first ones get that of real images."""
        numbers = step * self.per_batch + torch.arange(self.per_batch)
        labels = numbers % self.network.num_classes
        images = make_images(self.network, labels, generator(self.seed, _GENERATED, epoch, step))
        mine = torch.arange(self.per_batch).flip(0).tensor_split(world)[world - 1 - rank].flip(0)
        first, last = (int(mine[0]), int(mine[-1]) + 1) if len(mine) else (0, 0)
        return GeneratedPart(images[first:last], labels[first:last], numbers[first:last])
