"""Load a trained generator from its run folder and generate images with a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda._utils.devices import send
from isda.engine.digests import file_digest
from isda.engine.run_records import check_task, config_errors, load_weights, open_finished_run
from isda.networks.generative import ImageGenerator, create_generator, to_pixels

__all__ = ["GENERATION_TASK", "TrainedGenerator", "load_generator", "make_images"]

GENERATION_TASK = "generation"
"""The task whose runs are generators; `isda.tasks.gan` has it."""

AT_ONCE = 500


@dataclass(frozen=True)
class TrainedGenerator:
    """A generator with its final weights, and what of its configuration others need to know."""

    folder: Path
    network: ImageGenerator
    method: str
    data: str
    classes: tuple[str, ...]
    labels: int | None
    """How many labelled images it has learnt from; None for all that were not held out."""
    held_out: int
    """How many training images it has not seen."""
    seed: int
    data_digest: str
    """Of the data set that it has learnt from."""
    sha256: str
    """Of its weights."""


@torch.no_grad()
def make_images(network: ImageGenerator, labels: Tensor, chance: torch.Generator) -> Tensor:
    """(N, C, H, W) uint8 images of classes (N,), on the device of the network; latent vectors are drawn on the CPU."""
    weight = next(network.parameters())
    latent = send(network.draw(len(labels), chance), weight.device, weight.dtype)
    parts = zip(latent.split(AT_ONCE), labels.split(AT_ONCE), strict=True)
    return torch.cat([to_pixels(network(vectors, classes)) for vectors, classes in parts])


def load_generator(folder: Path) -> TrainedGenerator:
    """The generator of a finished run, in eval mode on the CPU.

    Raises:
        ValueError: no run, one that is not finished, one of another task, or damaged files.
    """
    run, stored = open_finished_run(folder)
    check_task(run, stored, GENERATION_TASK, "a generator")
    with config_errors(run, "generator"):
        network = _created(stored)
        told = {name: stored[name] for name in ("method", "data", "labels", "held_out", "seed", "data_digest")}
    load_weights(run, network, str(stored["network"]))
    sha256 = str(file_digest(run.weights_file)["sha256"])
    made = network.eval().requires_grad_(False)
    return TrainedGenerator(folder.absolute(), made, classes=tuple(stored["classes"]), sha256=sha256, **told)


def _created(stored: Mapping[str, Any]) -> ImageGenerator:
    options = {name: stored[name] for name in ("channels", "noise", "codes", "width")}
    size = stored["image_size"][0]
    network = create_generator(stored["network"], len(stored["classes"]), size=size, **options)
    return network.double() if stored["precision"] == "float64" else network
