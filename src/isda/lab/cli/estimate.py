"""How long the training of classifiers takes, told before it begins."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.nn import functional as F

from isda.lab.data.catalogue import CATALOGUE
from isda.lab.devices import on_host
from isda.lab.engine.config import RunConfig
from isda.lab.engine.processes import Processes
from isda.lab.reproduce.classifier_trainings import IMAGENET_SIDE, PASSES
from isda.lab.reproduce.runner import duration
from isda.lab.tasks.classification.pretrained import create_network
from isda.lab.tasks.classification.settings import ClassificationConfig

WORTH_TELLING = 600.0
"""Seconds of the shortest run that is announced."""
IMAGES_ON_HOST = 8
"""Per measured step on a CPU, where the time per image hardly depends on their number."""
MEASURED_SECONDS = 1.0
"""The measurement ends with the first step after this time."""


def announce_duration(config: RunConfig, processes: Processes, runs: int = 1) -> None:
    """Print how long runs take, if that is long and not what the paper's recipe was made for.

    That is: a classifier on the user's own data, or without an accelerator.

    Args:
        config: of one of the runs.
        processes: that train each of them.
        runs: how many there are.
    """
    if not isinstance(config, ClassificationConfig) or config.scale == "smoke" or not (runs and processes.first):
        return
    if config.data in CATALOGUE and not on_host(processes.device):
        return
    share = runs / processes.world
    seconds = share * estimated_seconds(config, processes.device, WORTH_TELLING / share)
    if seconds < WORTH_TELLING:
        return
    each = f"{runs} runs of {config.epochs}" if runs > 1 else f"{config.epochs}"
    shorter = "--scale small takes a tenth, " if config.scale == "paper" else ""
    print(
        f"isda: about {duration(seconds)} on this machine for {each} epochs of {config.train_images:,} images; "
        f"{shorter}--epochs N as many as you like",
        file=sys.stderr,
        flush=True,
    )


def estimated_seconds(config: ClassificationConfig, device: torch.device, least: float = 0.0) -> float:
    """The time of the training steps of a run: images times the measured time of one; evaluation is not included.

    Args:
        config: of the run.
        device: where it is trained.
        least: a shorter run is measured by one step only, which takes longer than later ones.
    """
    images = config.total_steps * config.batch_size * PASSES.get(config.method.removesuffix("+isda"), 1.0)
    return images * _seconds_per_image(config, device, least / images)


def _seconds_per_image(config: ClassificationConfig, device: torch.device, least: float) -> float:
    """The measured time of one image in a training step of the network, forward and backward."""
    count = min(config.batch_size, IMAGES_ON_HOST) if on_host(device) else config.batch_size
    size: Any = (config.input_size,) * 2 if config.input_size else config.image_size or (IMAGENET_SIDE,) * 2
    with torch.random.fork_rng(devices=[]):
        network = create_network(config).to(device, config.dtype).train()
        images = torch.rand(count, config.channels, *size).to(device, config.dtype)
    if config.freeze:
        network.body.requires_grad_(False)
    targets = torch.zeros(count, dtype=torch.long, device=device)

    def step() -> None:
        F.cross_entropy(network(images), targets).backward()
        network.zero_grad()
        if not on_host(device):
            torch.get_device_module(device).synchronize(device)

    began = time.perf_counter()
    step()
    first = (time.perf_counter() - began) / count
    if first < least:
        return first
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < MEASURED_SECONDS:
        step()
        steps += 1
    return (time.perf_counter() - began) / (steps * count)
