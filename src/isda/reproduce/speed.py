"""How fast this machine trains."""

from __future__ import annotations

import time
from functools import cache

import torch
import torch.nn.functional as F

from isda.reproduce.work import training_work

__all__ = ["machine_speed"]

MEASURED_FOR = 0.5
"""Seconds."""
IMAGES, CHANNELS, SIDE, KERNEL = 32, 64, 32, 3


@cache
def machine_speed() -> float:
    """Operations per second that a convolution gets in training here, on the threads of torch.

    Measured for half a second. Narrow networks get less, wide ones more.
    """
    maps = torch.randn(IMAGES, CHANNELS, SIDE, SIDE, requires_grad=True)
    kernel = torch.randn(CHANNELS, CHANNELS, KERNEL, KERNEL, requires_grad=True)
    work = training_work((CHANNELS * KERNEL * SIDE) ** 2, 0, IMAGES)

    def step() -> None:
        F.conv2d(maps, kernel, padding=KERNEL // 2).relu().sum().backward()

    step()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < MEASURED_FOR:
        step()
        steps += 1
    return work.operations * steps / (time.perf_counter() - started)
