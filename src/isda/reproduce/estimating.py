"""How long a training takes: floating-point operations counted, over the speed of this machine or of a stated one."""

from __future__ import annotations

import time
from functools import cache

import torch
import torch.nn.functional as F

from isda.classification.settings import Settings
from isda.data.catalogue import CATALOGUE
from isda.engine.recipe import Recipe
from isda.reproduce.sizes import multiply_adds

__all__ = ["OPERATIONS_PER_MULTIPLY_ADD", "machine_speed", "training_operations"]

OPERATIONS_PER_MULTIPLY_ADD = 6
"""Of one training sample: two operations, in the forward pass and twice in the backward pass."""
MEASURED_FOR = 0.5
"""Seconds."""


def training_operations(settings: Settings, recipe: Recipe, passes: float = 1.0) -> float:
    """Floating-point operations of one run of a classifier.

    6 x multiply-adds x images x epochs x passes, where passes are forward and backward passes per image and epoch.
    """
    assert settings.data is not None
    assert settings.network is not None
    known = CATALOGUE[settings.data]
    images = settings.labels or known.train
    epochs = settings.epochs or recipe.epochs
    macs = multiply_adds(settings.network, known.size or 224, settings.width or 1.0)
    return OPERATIONS_PER_MULTIPLY_ADD * macs * images * epochs * passes


@cache
def machine_speed() -> float:
    """Operations per second that a training step of a small convolutional network gets here, on the threads of torch.

    Measured for half a second. Narrow networks get less, wide ones more.
    """
    images, channels, side = 32, 64, 32
    maps = torch.randn(images, channels, side, side, requires_grad=True)
    kernel = torch.randn(channels, channels, 3, 3, requires_grad=True)
    macs = images * channels * channels * 9 * side * side

    def step() -> None:
        F.conv2d(maps, kernel, padding=1).relu().sum().backward()

    step()
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < MEASURED_FOR:
        step()
        steps += 1
    return OPERATIONS_PER_MULTIPLY_ADD * macs * steps / (time.perf_counter() - started)
