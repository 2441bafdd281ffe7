"""Cost of training runs: network sizes, operations and bytes, measured machine speed, estimated time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.networks.cost import count_multiply_adds
from isda.networks.registry import IMAGENET, create
from isda.networks.timm_models import TIMM_PREFIX

OPERATIONS_PER_MULTIPLY_ADD = 6
"""Of one training sample: two operations, in the forward pass and twice in the backward pass."""
TOUCHES = 5
"""How often training moves each element of the activations: written and read again in the forward pass, read in the
backward pass, where its gradient is written and read."""
BYTES = 2
"""Of an element in mixed precision."""


class MachineSpeed(NamedTuple):
    """Of a machine, each per second."""

    operations: float
    bytes: float
    together: bool
    """Whether it calculates while it moves memory, as a GPU does: then whichever takes longer is all it takes."""


class Work(NamedTuple):
    """Operations of arithmetic, and bytes to and from memory."""

    operations: float = 0.0
    bytes: float = 0.0

    def times(self, count: float) -> Work:
        """So many times as much."""
        return Work(self.operations * count, self.bytes * count)

    def seconds(self, speed: MachineSpeed) -> float:
        """The roofline, whichever of both takes longer, or one after the other.

        Example:
            >>> Work(operations=8e12, bytes=1e12).seconds(Speed(4e12, 2e12, together=True))
            2.0
            >>> Work(operations=8e12, bytes=1e12).seconds(Speed(4e12, 2e12, together=False))
            2.5
        """
        both = self.operations / speed.operations, self.bytes / speed.bytes
        return max(both) if speed.together else sum(both)


def training_work(multiply_adds: float, elements: float, samples: float) -> Work:
    """Forward and backward passes of samples.

    Args:
        multiply_adds: of one sample in one forward pass.
        elements: that the layers put out for it.
        samples: seen in training.
    """
    return Work(OPERATIONS_PER_MULTIPLY_ADD * multiply_adds, TOUCHES * BYTES * elements).times(samples)


WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
"""Factors on channel counts that are tried, the widest first."""
COUNTED_CLASSES = 10


class NetworkSize(NamedTuple):
    """Of one image in one forward pass."""

    multiply_adds: float
    elements: float
    """That the layers put out."""


def network_size(network: str, side: int, width: float = 1.0) -> NetworkSize:
    """What one image costs, about: in proportion to its pixels; multiply-adds to the square of the width.

    Example:
        >>> round(network_size("resnet-32", side=32).multiply_adds / 1e6)
        69
        >>> round(network_size("resnet-32", 16, width=0.5).multiply_adds / 1e6, 1)
        4.3
    """
    own = 224 if network in IMAGENET or network.startswith(TIMM_PREFIX) else 32
    full, pixels = _counted(network, own), (side / own) ** 2
    return NetworkSize(full.multiply_adds * pixels * width**2, full.elements * pixels * width)


def fitting_width(network: str, most: float, side: int) -> float:
    """The widest factor on a network's channels with which it stays within so many multiply-adds, or the narrowest.

    Args:
        network: by name, as `isda.networks.create` takes it.
        most: multiply-adds of one forward pass of one image, about.
        side: pixels of the image, in height and width.

    Example:
        >>> fitting_width("resnet-32", 10e6, side=32), fitting_width("resnet-32", 1e9, side=32)
        (0.25, 1.0)
    """
    if network.startswith(TIMM_PREFIX):
        return 1.0
    return next((width for width in WIDTHS if network_size(network, side, width).multiply_adds <= most), WIDTHS[-1])


def count_size(network: nn.Module, side: int) -> NetworkSize:
    """Count on shapes alone: multiply-adds, and what every layer without further layers in it puts out."""
    elements = 0

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal elements
        elements += output.numel() if isinstance(output, Tensor) else 0

    leaves = [module for module in network.modules() if not any(module.children())]
    handles = [module.register_forward_hook(count) for module in leaves]
    try:
        counted = count_multiply_adds(network, (3, side, side))
    finally:
        for handle in handles:
            handle.remove()
    return NetworkSize(counted, elements)


@cache
def _counted(network: str, side: int) -> NetworkSize:
    with torch.device("meta"):
        made: Any = create(network, num_classes=COUNTED_CLASSES)
    return count_size(made, side)


MEASURED_FOR = 0.5
"""Seconds, of each."""
IMAGES, CHANNELS, SIDE, KERNEL = 32, 16, 32, 3


@cache
def machine_speed() -> MachineSpeed:
    """What training gets here, on the threads of torch: measured on maps as narrow as those of the smaller scales.

    Wide networks get more operations per second, up to five times as many.
    """
    maps = torch.randn(IMAGES, CHANNELS, SIDE, SIDE, requires_grad=True)
    kernel = torch.randn(CHANNELS, CHANNELS, KERNEL, KERNEL, requires_grad=True)
    normalise = nn.BatchNorm2d(CHANNELS)
    convolution = training_work((CHANNELS * KERNEL * SIDE) ** 2, 0, IMAGES)
    between = training_work(0, 2 * CHANNELS * SIDE**2, IMAGES)
    return MachineSpeed(
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
