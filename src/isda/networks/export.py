"""The weights of a classifier under the names that other libraries load, to be used there as a backbone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from isda.choices import check_choice
from isda.files import replacing
from isda.networks.network import Network
from isda.networks.registry import IMAGENET

__all__ = ["LIBRARIES", "export", "exported"]

_HEADS = {"resnet": "fc", "resnext": "fc", "densenet": "classifier"}
"""What torchvision and timm call the classifier of a family."""


def _whole(network: Network, family: str) -> dict[str, Tensor]:
    """The names of torchvision, kept by timm for these families: the body as it is, and the classifier."""
    head = {f"{_HEADS[family]}.{name}": value for name, value in network.classifier.state_dict().items()}
    return network.body.state_dict() | head


def _backbone(network: Network, family: str) -> dict[str, Tensor]:
    """MMDetection's residual networks: torchvision's names, without the classifier."""
    if family == "densenet":
        raise ValueError("MMDetection has no DenseNets; export them for torchvision or timm")
    return network.body.state_dict()


LIBRARIES: dict[str, Callable[[Network, str], dict[str, Tensor]]] = {
    "torchvision": _whole,
    "timm": _whole,
    "mmdetection": _backbone,
}


def exported(network: Network, name: str, library: str) -> dict[str, Tensor]:
    """The tensors of a network under a library's names.

    Args:
        network: a trained one.
        name: what it was created by; one of the ImageNet networks, which the libraries have too.
        library: torchvision, timm or mmdetection.

    Raises:
        ValueError: the library has no such network.

    Example:
        >>> from isda import networks
        >>> weights = exported(networks.create("resnet-50", num_classes=3), "resnet-50", "torchvision")
        >>> weights["fc.weight"].shape
        torch.Size([3, 2048])
    """
    layout = LIBRARIES[check_choice("library", library, LIBRARIES)]
    if name not in IMAGENET:
        raise ValueError(f"{library} has no network {name}; there are {', '.join(IMAGENET)}")
    tensors = layout(network, name.partition("-")[0])
    return {key: value.detach().cpu().contiguous() for key, value in tensors.items()}


def export(network: Network, name: str, library: str, path: Path) -> None:
    """Write what `exported` gives to a file: safetensors by that suffix, else as torch.save does.

    MMDetection takes it as ``init_cfg=dict(type="Pretrained", checkpoint=FILE)`` of its backbone.
    """
    from safetensors.torch import save_file

    tensors = exported(network, name, library)
    with replacing(path) as unfinished:
        if path.suffix == ".safetensors":
            save_file(tensors, unfinished)
        else:
            torch.save(tensors, unfinished)
