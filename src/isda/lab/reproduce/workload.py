"""Cost of training runs: network sizes, operations and bytes, measured machine speed, estimated time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda.lab.engine.trainer import AUTOCAST
from isda.lab.networks.cost import count_multiply_adds
from isda.lab.networks.registry import IMAGENET, create
from isda.lab.networks.timm_models import TIMM_PREFIX

OPERATIONS_PER_MULTIPLY_ADD = 6
"""Of one training sample: two in the forward pass, four in the backward pass."""
TOUCHES = 5
"""Memory accesses of each element of the activations: written and read in the forward pass, read in the backward pass,
and its gradient written and read."""
PRECISION = "float32"
"""Of runs whose settings name none."""
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Of an element of the activations; the last two are mixed precision."""


class MachineSpeed(NamedTuple):
    """Throughput of a machine per second."""

    operations: float
    bytes: float
    together: bool
    """Whether arithmetic and memory accesses overlap, as on a GPU."""


class Work(NamedTuple):
    """Arithmetic operations, and bytes to and from memory."""

    operations: float = 0.0
    bytes: float = 0.0

    def times(self, count: float) -> Work:
        """The work of ``count`` repetitions."""
        return Work(self.operations * count, self.bytes * count)

    def seconds(self, speed: MachineSpeed) -> float:
        """The maximum of both times if they overlap (roofline), else their sum.

        Example:
            >>> Work(operations=8e12, bytes=1e12).seconds(MachineSpeed(4e12, 2e12, together=True))
            2.0
            >>> Work(operations=8e12, bytes=1e12).seconds(MachineSpeed(4e12, 2e12, together=False))
            2.5
        """
        both = self.operations / speed.operations, self.bytes / speed.bytes
        return max(both) if speed.together else sum(both)


def training_work(multiply_adds: float, elements: float, samples: float, precision: str | None = None) -> Work:
    """Forward and backward passes of samples, given the cost of one sample in one forward pass."""
    moved = TOUCHES * BYTES[precision or PRECISION] * elements
    return Work(OPERATIONS_PER_MULTIPLY_ADD * multiply_adds, moved).times(samples)


WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
"""Factors on channel counts, the widest first."""
COUNTED_CLASSES = 10


class NetworkSize(NamedTuple):
    """Cost of one image in one forward pass."""

    multiply_adds: float
    elements: float
    """Of the layers' outputs."""


def network_size(network: str, side: int, width: float = 1.0) -> NetworkSize:
    """Approximate cost of one image: proportional to its pixels, multiply-adds to the square of the width.

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
    """The widest factor on a network's channels within a limit of multiply-adds, or the narrowest factor.

    Args:
        network: by name, as `isda.lab.networks.create` takes it.
        most: multiply-adds of one forward pass of one image, approximately.
        side: pixels of the image, in height and width.

    Example:
        >>> fitting_width("resnet-32", 10e6, side=32), fitting_width("resnet-32", 1e9, side=32)
        (0.25, 1.0)
    """
    if network.startswith(TIMM_PREFIX):
        return 1.0
    return next((width for width in WIDTHS if network_size(network, side, width).multiply_adds <= most), WIDTHS[-1])


def count_size(network: nn.Module, side: int) -> NetworkSize:
    """Count multiply-adds and output elements of all leaf modules, from shapes."""
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
        created: Any = create(network, num_classes=COUNTED_CLASSES)
    return count_size(created, side)


MEASURED_FOR = 0.5
"""Seconds of each measurement."""
IMAGES, CHANNELS, SIDE, KERNEL = 32, 16, 32, 3


@cache
def machine_speed(precision: str = PRECISION) -> MachineSpeed:
    """Measured speed of this machine with torch's threads, for maps as narrow as those of the smaller scales.

    Wide networks reach up to five times as many operations per second.
    """
    dtype = torch.float64 if precision == "float64" else torch.float32
    maps = torch.randn(IMAGES, CHANNELS, SIDE, SIDE, dtype=dtype, requires_grad=True)
    kernel = torch.randn(CHANNELS, CHANNELS, KERNEL, KERNEL, dtype=dtype, requires_grad=True)
    normalise = nn.BatchNorm2d(CHANNELS, dtype=dtype)
    convolution = training_work((CHANNELS * KERNEL * SIDE) ** 2, 0, IMAGES, precision)
    between = training_work(0, 2 * CHANNELS * SIDE**2, IMAGES, precision)
    mixed = AUTOCAST.get(precision)
    with torch.autocast("cpu", dtype=mixed, enabled=mixed is not None):
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
