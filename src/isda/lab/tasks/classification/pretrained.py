"""The network of a run: creation, and pretrained weights."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from isda.lab import networks
from isda.lab.networks import Network
from isda.lab.networks.pretrained import HUB, load_pretrained, pretrained_inputs, pretrained_weights
from isda.lab.tasks.classification.settings import ClassificationConfig, ClassificationSettings

CLASSIFIER_STD = 0.01
"""Of the weights of a new classifier."""
BUILD_ERRORS = (RuntimeError, TypeError, OverflowError, MemoryError, ArithmeticError, LookupError)
"""What torch raises for impossible sizes, besides the ValueErrors of our own checks."""


def create_network(config: ClassificationConfig) -> Network:
    """The network that a configuration names, with random weights."""
    return networks.create(config.network, num_classes=len(config.classes), **config.network_options)


def pretrained_fields(settings: ClassificationSettings, network: str, options: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration that follow from pretrained weights; nothing where there are none.

    Args:
        settings: of the user.
        network: its name.
        options: of the network; their number of channels becomes the one that it was pretrained with.

    Raises:
        ValueError: the weights cannot be had, or a setting needs some.
    """
    if settings.pretrained is None:
        for name in ("freeze", "input_size"):
            if name in settings.given():
                raise ValueError(f"{name} must come with pretrained, the weights of the network; got it alone")
        return {}
    inputs = pretrained_inputs(network, settings.input_size)
    source = settings.pretrained
    source = HUB if source == HUB else str(Path(source).absolute())
    options = options | {"in_channels": inputs.channels}
    return {
        "network_options": options,
        "pretrained": source,
        "pretrained_sha256": _read(network, source, options)[1],
        "input_size": inputs.size,
        "input_resize": inputs.resize,
        "channels": inputs.channels,
        "mean": inputs.mean,
        "std": inputs.std,
        # Images of any size are brought to the network's.
        "image_size": None,
    }


def load_initial_weights(network: Network, config: ClassificationConfig) -> Network:
    """Give a network the pretrained weights of its configuration, and freeze what is not to be trained.

    The new classifier starts near zero: families differ by orders of magnitude in how they begin theirs, and a large
    random one would spoil pretrained layers in the first steps.

    Raises:
        ValueError: the weights do not fit, or are others than when the run was planned.
    """
    if config.pretrained:
        # Before anything is read: what the hub's library draws must not reach it.
        nn.init.normal_(network.classifier.weight, std=CLASSIFIER_STD)
        if network.classifier.bias is not None:
            nn.init.zeros_(network.classifier.bias)
        weights, sha256 = _read(config.network, config.pretrained, config.network_options)
        if sha256 != config.pretrained_sha256:
            raise ValueError(f"{config.pretrained} holds other weights than when the run was planned")
        load_pretrained(network, config.network, weights, "the hub" if config.pretrained == HUB else config.pretrained)
    if config.freeze:
        network.freeze_body()
    return network


def check_pretrained(config: ClassificationConfig, image: Tensor) -> None:
    """Raise a ValueError unless the weights fit the network, and the network takes an image.

    Args:
        config: of the run.
        image: (C, H, W) as the network sees one.
    """
    if not config.pretrained:
        return
    network = load_initial_weights(create_network(config), config).eval()
    try:
        with torch.no_grad():
            network(image.unsqueeze(0))
    except (ValueError, AssertionError, *BUILD_ERRORS) as error:
        shape = "x".join(map(str, image.shape))
        raise ValueError(f"{config.network} cannot see images of {shape}: {error}") from error


def _read(network: str, source: str, options: dict[str, Any]) -> tuple[dict[str, Tensor], str]:
    """The tensors and their digest; those of the last call are kept, for many runs begin with the same."""
    path = Path(source)
    stamp = path.stat().st_mtime_ns if source != HUB and path.is_file() else 0
    return _read_once(network, source, json.dumps(options, sort_keys=True), stamp)


@lru_cache(maxsize=1)
def _read_once(network: str, source: str, options: str, stamp: int) -> tuple[dict[str, Tensor], str]:
    weights = pretrained_weights(network, source, json.loads(options))
    sha256 = hashlib.sha256()
    for name in sorted(weights):
        sha256.update(name.encode())
        sha256.update(weights[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return weights, sha256.hexdigest()
