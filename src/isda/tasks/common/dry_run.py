"""Dry-run validation on the meta device.

Networks and methods are built and fed one batch of shapes before a run folder is created.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isda import networks
from isda.networks import Network
from isda.networks.timm_models import TIMM_PREFIX
from isda.tasks.classification.settings import ClassificationConfig

# What torch raises for sizes that make no sense, beside the ValueErrors of our own checks.
BUILD_ERRORS = (RuntimeError, TypeError, OverflowError, MemoryError, ArithmeticError, LookupError)


def dry_run(
    config: ClassificationConfig, make_method: Callable[[Network], nn.Module], image: Tensor, batch_size: int
) -> None:
    """Raise a ValueError if the network or the method cannot be made, fit in memory, or take a batch.

    Args:
        config: of the run.
        make_method: the method for a network.
        image: (C, H, W) as the network sees one.
        batch_size: the smallest number of images that the network sees at once in training.
    """
    options = config.network_options
    if "num_classes" in options:
        raise ValueError(f"network_options must not name num_classes, which the data set {config.data} decides")
    if config.network.startswith(TIMM_PREFIX):
        # Not every model of timm can be made without memory.
        return
    method_text = f"method {config.method} with {describe_options(config.method_options)}"
    trial = _DryRunKey(config.network, repr(options), len(config.classes), config.dtype, (batch_size, *image.shape))
    if trial not in _CHECKED_NETWORKS:
        _CHECKED_NETWORKS[trial] = _checked_network(trial, config)
    network = deepcopy(_CHECKED_NETWORKS[trial])  # a method may change the network that it is for
    check_memory(method_text, build_on_meta(lambda: make_method(network), method_text), config.dtype)


def create_network(config: ClassificationConfig) -> Network:
    """The network that a configuration names, with random weights."""
    return networks.create(config.network, num_classes=len(config.classes), **config.network_options)


class _DryRunKey(NamedTuple):
    """All that decides whether a network can be trained: many runs of a plan have it in common."""

    network: str
    options: str
    classes: int
    dtype: torch.dtype
    images: tuple[int, ...]


_CHECKED_NETWORKS: dict[_DryRunKey, Network] = {}
"""Networks without memory that have taken a batch. A plan of hundreds of runs has some dozens."""


def _checked_network(trial: _DryRunKey, config: ClassificationConfig) -> Network:
    """A network that fits in memory and takes a batch."""
    what = f"network {config.network} with {describe_options(config.network_options)}"
    network: Network = build_on_meta(lambda: create_network(config), what)
    check_memory(what, network, config.dtype)
    _check_batch(config, network, torch.empty(trial.images, device="meta"))
    return network


def describe_options(options: dict[str, Any]) -> str:
    """Options in words."""
    given = {name: value for name, value in options.items() if value is not None}
    return ", ".join(f"{name}={value}" for name, value in given.items()) or "its defaults"


def build_on_meta(make: Callable[[], Any], what: str) -> Any:
    """What ``make`` makes, without memory; a ValueError names ``what`` if it cannot be made."""
    try:
        with torch.device("meta"):
            return make()
    except BUILD_ERRORS as error:
        raise ValueError(f"{what} cannot be made: {first_line(error)}") from error


def _check_batch(config: ClassificationConfig, network: Network, images: Tensor) -> None:
    """One batch through the network in training mode: shapes only, nothing is computed."""
    try:
        with torch.device("meta"), torch.no_grad():
            network.train()(images)
    except (ValueError, *BUILD_ERRORS) as error:
        shape = "x".join(map(str, images.shape[1:]))
        raise ValueError(
            f"{config.network} cannot be trained with {len(images)} images of {shape} at once: {first_line(error)}"
        ) from error


def check_memory(what: str, module: nn.Module, dtype: torch.dtype) -> None:
    """Raise a ValueError if the parameters and buffers of a module are more than any device here can hold."""
    tensors = [*module.parameters(), *module.buffers()]
    needed = sum(tensor.numel() * max(tensor.element_size(), dtype.itemsize) for tensor in tensors)
    there = _largest_memory()
    if needed > there:
        raise ValueError(f"{what} needs {needed / 2**30:,.0f} GiB, this machine has {there / 2**30:,.0f} GiB")


def _largest_memory() -> float:
    """Bytes of the host's memory or of an accelerator's, whichever has more; infinite where nobody tells."""
    if not hasattr(os, "sysconf"):
        return inf
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cards = range(torch.cuda.device_count())
    return max(host, *(torch.cuda.get_device_properties(card).total_memory for card in cards), 0)


def first_line(error: BaseException) -> str:
    """What an error says, without what torch adds below."""
    return str(error).partition("\n")[0] or type(error).__name__
