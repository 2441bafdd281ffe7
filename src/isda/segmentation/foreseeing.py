"""The network of a configuration, and what a run would fail at, found before its folder is made."""

from __future__ import annotations

from pathlib import Path

import torch

from isda.classification.foreseeing import FAILURES, check_memory, first_line, made, said
from isda.networks import segmentation as networks
from isda.networks.segmentation import SegmentationNetwork, freeze_batch_norm
from isda.segmentation.config import Config
from isda.segmentation.methods import SegmentationMethod

__all__ = ["create_network", "foresee"]


def create_network(config: Config, pretrained: str | None = None) -> SegmentationNetwork:
    """The network that a configuration names, with random weights but for those of a pretrained backbone."""
    network = networks.create(config.network, len(config.classes), pretrained=pretrained, **config.network_options)
    return freeze_batch_norm(network) if config.freeze_batch_norm else network


def foresee(config: Config, method: type[SegmentationMethod]) -> None:
    """Raise a ValueError if the network or the method cannot be made, fit in memory, or take a batch.

    Nothing is computed: both are made without memory.
    """
    network_text = f"network {config.network} with {said(config.network_options)}"
    method_text = f"method {config.method} with {said(config.method_options)}"
    network: SegmentationNetwork = made(lambda: create_network(config), network_text)
    check_memory(network_text, network, config.dtype)
    height, width = config.crop_size
    try:
        with torch.device("meta"), torch.no_grad():
            network.train().outputs(torch.empty(config.batch_size, 3, height, width))
    except (ValueError, *FAILURES) as error:
        raise ValueError(
            f"{config.network} cannot be trained with {config.batch_size} crops of {height}x{width}: "
            f"{first_line(error)}"
        ) from error
    check_memory(method_text, made(lambda: method.create(network, config), method_text), config.dtype)
    if config.pretrained not in ("", "torchvision") and not Path(config.pretrained).is_file():
        raise ValueError(f"pretrained must be torchvision or a file of weights, got {config.pretrained!r}")
