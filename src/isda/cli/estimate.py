"""How long runs at the paper's scale take, told before they begin."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.nn import functional as F

from isda._utils.devices import on_host
from isda.data.catalogue import CATALOGUE
from isda.engine.config import RunConfig
from isda.engine.processes import Processes
from isda.reproduce.classifier_trainings import IMAGENET_SIDE, PASSES
from isda.reproduce.runner import duration
from isda.tasks.classification.pretrained import create_network
from isda.tasks.classification.settings import ClassificationConfig

WORTH_TELLING = 600.0
"""Seconds of the shortest run that is announced."""
IMAGES_ON_HOST = 8
"""Per measured step on a CPU, where the time per image hardly depends on their number."""
MEASURED_SECONDS = 1.0
"""The measurement ends with the first step after this time."""


def announce_duration(config: RunConfig, processes: Processes, runs: int = 1) -> None:
    """Print how long runs take, if that is long and not what the paper's recipe was made for.

    That is: a classifier for all of the paper's epochs on the user's own data, or without an accelerator.

    Args:
        config: of one of the runs.
        processes: that train each of them.
        runs: how many there are.
    """
    if not isinstance(config, ClassificationConfig) or config.scale != "paper" or not (runs and processes.first):
        return
    if config.data in CATALOGUE and not on_host(processes.device):
        return
    seconds = runs * estimated_seconds(config, processes.device) / processes.world
    if seconds < WORTH_TELLING:
        return
    each = f"{runs} runs of {config.epochs}" if runs > 1 else f"{config.epochs}"
    print(
        f"isda: about {duration(seconds)} on this machine for {each} epochs of {config.train_images:,} images; "
        "--scale small takes a tenth, --epochs N as many as you like",
        file=sys.stderr,
        flush=True,
    )


def estimated_seconds(config: ClassificationConfig, device: torch.device) -> float:
    """The time of the training steps of a run: images times the measured time of one; evaluation is not included."""
    passes = PASSES.get(config.method.removesuffix("+isda"), 1.0)
    return config.total_steps * config.batch_size * passes * _seconds_per_image(config, device)


def _seconds_per_image(config: ClassificationConfig, device: torch.device) -> float:
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

    step()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < MEASURED_SECONDS:
        step()
        steps += 1
    return (time.perf_counter() - began) / (steps * count)
