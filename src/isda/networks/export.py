"""Export the weights of a classifier under the parameter names of other libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda._utils.choices import check_choice
from isda._utils.files import atomic_write
from isda.networks.network import Network
from isda.networks.registry import IMAGENET
from isda.networks.timm_models import TIMM_PREFIX, timm_state

TIMM_FILE = "timm.safetensors"
"""What a run of a pretrained model leaves for timm."""

_HEADS = {"resnet": "fc", "resnext": "fc", "densenet": "classifier"}
"""What torchvision and timm call the classifier of a family."""


def _torchvision_state(network: Network, family: str) -> dict[str, Tensor]:
    """The names of torchvision, kept by timm for these families: the body as it is, and the classifier."""
    head = {f"{_HEADS[family]}.{name}": value for name, value in network.classifier.state_dict().items()}
    return network.body.state_dict() | head


def _backbone_state(network: Network, family: str) -> dict[str, Tensor]:
    """MMDetection's residual networks: torchvision's names, without the classifier."""
    if family == "densenet":
        raise ValueError("MMDetection has no DenseNets; export them for torchvision or timm")
    return network.body.state_dict()


LIBRARIES: dict[str, Callable[[Network, str], dict[str, Tensor]]] = {
    "torchvision": _torchvision_state,
    "timm": _torchvision_state,
    "mmdetection": _backbone_state,
}


def export_state(
    network: Network, name: str, library: str, options: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """The tensors of a network under a library's names.

    Args:
        network: a trained one.
        name: what it was created by; one of the ImageNet networks, which the libraries have too, or timm:NAME.
        library: torchvision, timm or mmdetection; timm for timm:NAME.
        options: of the network, where it is timm's.

    Raises:
        ValueError: the library has no such network.

    Example:
        >>> from isda import networks
        >>> weights = exported(networks.create("resnet-50", num_classes=3), "resnet-50", "torchvision")
        >>> weights["fc.weight"].shape
        torch.Size([3, 2048])
    """
    layout = LIBRARIES[check_choice("library", library, LIBRARIES)]
    if name.startswith(TIMM_PREFIX) and library == "timm":
        tensors = timm_state(network, name.removeprefix(TIMM_PREFIX), options or {})
    elif name in IMAGENET:
        tensors = layout(network, name.partition("-")[0])
    else:
        raise ValueError(f"{library} has no network {name}; there are {', '.join(IMAGENET)}")
    return {key: value.detach().cpu().contiguous() for key, value in tensors.items()}


def export(network: Network, name: str, library: str, path: Path, options: Mapping[str, Any] | None = None) -> None:
    """Write what `export_state` gives to a file: safetensors by that suffix, else as torch.save does.

    MMDetection takes it as ``init_cfg=dict(type="Pretrained", checkpoint=FILE)`` of its backbone.
    """
    from safetensors.torch import save_file

    tensors = export_state(network, name, library, options)
    with atomic_write(path) as unfinished:
        if path.suffix == ".safetensors":
            save_file(tensors, unfinished)
        else:
            torch.save(tensors, unfinished)


def write_for_timm(
    network: Network, name: str, options: Mapping[str, Any], path: Path, told: Mapping[str, Any]
) -> bool:
    """Write a network for timm, with what a user has to know beside it as JSON in the file's metadata.

    Args:
        network: a trained one.
        name: what it was created by.
        options: of the network.
        path: the file, of safetensors.
        told: JSON values, such as the names of the classes.

    Returns:
        Whether timm has such a network; nothing is written if not.
    """
    from safetensors.torch import save_file

    try:
        tensors = export_state(network, name, "timm", options)
    except ValueError:
        return False
    with atomic_write(path) as unfinished:
        # One entry: several are written in an order that changes from file to file.
        save_file(tensors, unfinished, {"isda": json.dumps({"network": name, **told})})
    return True
