"""How fast this machine trains: convolutions, and the layers between them, which move memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from isda.reproduce.work import Speed, training_work

__all__ = ["machine_speed"]

MEASURED_FOR = 0.5
"""Seconds, of each."""
IMAGES, CHANNELS, SIDE, KERNEL = 32, 16, 32, 3


@cache
def machine_speed() -> Speed:
    """What training gets here, on the threads of torch: measured on maps as narrow as those of the smaller scales.

    Wide networks get more operations per second, up to five times as many.
    """
    maps = torch.randn(IMAGES, CHANNELS, SIDE, SIDE, requires_grad=True)
    kernel = torch.randn(CHANNELS, CHANNELS, KERNEL, KERNEL, requires_grad=True)
    normalise = nn.BatchNorm2d(CHANNELS)
    convolution = training_work((CHANNELS * KERNEL * SIDE) ** 2, 0, IMAGES)
    between = training_work(0, 2 * CHANNELS * SIDE**2, IMAGES)
    return Speed(
        convolution.operations * _per_second(lambda: F.conv2d(maps, kernel, padding=KERNEL // 2).sum().backward()),
        between.bytes * _per_second(lambda: normalise(maps).relu().sum().backward()),
        together=False,
    )


def _per_second(step: Callable[[], object]) -> float:
    step()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < MEASURED_FOR:
        step()
        steps += 1
    return steps / (time.perf_counter() - started)
