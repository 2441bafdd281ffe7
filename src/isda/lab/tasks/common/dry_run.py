"""Dry-run validation on the meta device.

Networks and methods are built and given one batch of shapes before a run folder is created.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from math import inf, prod
from typing import Any, TypeVar

import torch
from torch import nn

_Network = TypeVar("_Network", bound=nn.Module)

BUILD_ERRORS = (RuntimeError, TypeError, OverflowError, MemoryError, ArithmeticError, LookupError)
"""What torch raises for impossible sizes, besides the ValueErrors of our own checks."""


_CHECKED_NETWORKS: dict[tuple[object, ...], nn.Module] = {}
"""Networks on the meta device that have passed the checks; many runs of a plan share one."""


def dry_run(
    config: Any,
    make_network: Callable[[], _Network],
    make_method: Callable[[_Network], nn.Module],
    images: tuple[int, ...] | None = None,
    *,
    cached: bool = False,
) -> None:
    """Raise a ValueError if the network or the method cannot be built, needs too much memory, or fails on a batch.

    Args:
        config: of the run, with network, network_options, method, method_options, classes and dtype.
        make_network: the network of the configuration.
        make_method: the method for a network.
        images: (N, C, H, W) shape of the smallest training batch; None to skip the forward pass.
        cached: check the network once for all configurations with the same network, options, classes, type and images.
    """
    text = f"network {config.network} with {describe_options(config.network_options)}"
    key = (text, len(config.classes), config.dtype, images)
    network: Any = _CHECKED_NETWORKS.get(key) if cached else None
    if network is None:
        network = build_on_meta(make_network, text, config.dtype)
        if images is not None:
            _check_batch(config.network, network, images)
    if cached:
        _CHECKED_NETWORKS[key] = network
        network = deepcopy(network)  # a method may change the network that it is for
    text = f"method {config.method} with {describe_options(config.method_options)}"
    build_on_meta(lambda: make_method(network), text, config.dtype)


def describe_options(options: dict[str, Any]) -> str:
    """Options as text.

    Example:
        >>> describe_options({"width": 2, "dropout": None}), describe_options({})
        ('width=2', 'its defaults')
    """
    return ", ".join(f"{name}={value}" for name, value in options.items() if value is not None) or "its defaults"


def options_from_text(texts: Mapping[str, str]) -> dict[str, Any]:
    """Options from text: numbers, truth values and null as in JSON, other texts as they are.

    Example:
        >>> options_from_text({"width": "0.5", "stem": "deep"})
        {'width': 0.5, 'stem': 'deep'}
    """
    options: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            options[name] = json.loads(text)
        except (TypeError, ValueError):
            options[name] = text
    return options


def build_on_meta(make: Callable[[], _Network], text: str, dtype: torch.dtype) -> _Network:
    """A module on the meta device.

    Args:
        make: builds it.
        text: what it is, for messages.
        dtype: of its weights in training.

    Raises:
        ValueError: it cannot be built, or is larger than the memory of any device of this machine.
    """
    try:
        with torch.device("meta"):
            module = make()
    except BUILD_ERRORS as error:
        raise ValueError(f"{text} cannot be built: {first_line(error)}") from error
    tensors = [*module.parameters(), *module.buffers()]
    _check_memory(text, sum(tensor.numel() * max(tensor.element_size(), dtype.itemsize) for tensor in tensors))
    return module


def _check_memory(text: str, needed: int) -> None:
    available = _largest_memory()
    if needed > available:
        raise ValueError(f"{text} needs {needed / 2**30:,.0f} GiB, this machine has {available / 2**30:,.0f} GiB")


def _check_batch(name: str, network: nn.Module, shape: Sequence[int]) -> None:
    """One forward pass in training mode: shapes only, nothing is computed; the images alone must fit into memory."""
    size = "x".join(map(str, shape[1:]))
    _check_memory(f"a batch of {shape[0]} images of {size}", prod(shape) * torch.float32.itemsize)
    try:
        with torch.device("meta"), torch.no_grad():
            network.train()(torch.empty(*shape))
    except (ValueError, *BUILD_ERRORS) as error:
        raise ValueError(
            f"{name} cannot be trained with {shape[0]} images of {size} at once: {first_line(error)}"
        ) from error


def _largest_memory() -> float:
    """Bytes of the host's memory or of an accelerator's, whichever has more; infinite if unknown."""
    if not hasattr(os, "sysconf"):
        return inf
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cards = range(torch.cuda.device_count())
    return max(host, *(torch.cuda.get_device_properties(card).total_memory for card in cards), 0)


def first_line(error: BaseException) -> str:
    """The message of an error without the further lines that torch adds."""
    return str(error).partition("\n")[0] or type(error).__name__
