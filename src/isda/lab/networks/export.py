"""Export a classifier: its weights under the parameter names of other libraries, or as an ONNX graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isda.lab.choices import check_choice
from isda.lab.extras import needed_by
from isda.lab.files import atomic_write
from isda.lab.networks.network import Network
from isda.lab.networks.registry import IMAGENET
from isda.lab.networks.timm_models import TIMM_PREFIX, timm_state

TIMM_FILE = "timm.safetensors"
"""The export for timm in the folder of a run of a pretrained model."""

LIBRARIES = ("torchvision", "timm", "mmdetection")


def export_state(
    network: Network, name: str, library: str, options: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """The tensors of a network under a library's names.

    Args:
        network: the network.
        name: by which it was created: one of the ImageNet networks, which the libraries have too, or timm:NAME.
        library: torchvision, timm or mmdetection; timm for timm:NAME.
        options: of a network of timm.

    Raises:
        ValueError: the library has no such network.

    Example:
        >>> from isda.lab import networks
        >>> weights = export_state(networks.create("resnet-50", num_classes=3), "resnet-50", "torchvision")
        >>> weights["fc.weight"].shape
        torch.Size([3, 2048])
    """
    check_choice("library", library, LIBRARIES)
    if name.startswith(TIMM_PREFIX) and library == "timm":
        tensors = timm_state(network, name.removeprefix(TIMM_PREFIX), options or {})
    elif name in IMAGENET:
        tensors, family = network.body.state_dict(), name.partition("-")[0]
        if library != "mmdetection":
            # timm keeps torchvision's names for these families.
            head = "classifier" if family == "densenet" else "fc"
            tensors |= {f"{head}.{key}": value for key, value in network.classifier.state_dict().items()}
        elif family == "densenet":
            raise ValueError("MMDetection has no DenseNets; export them for torchvision or timm")
    else:
        raise ValueError(f"{library} has no network {name}; there are {', '.join(IMAGENET)}")
    return {key: value.detach().cpu().contiguous() for key, value in tensors.items()}


def export(network: Network, name: str, library: str, path: Path, options: Mapping[str, Any] | None = None) -> None:
    """Write the tensors of `export_state` to a file: of safetensors by its suffix, else of torch.save.

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
    network: Network, name: str, options: Mapping[str, Any], path: Path, metadata: Mapping[str, Any]
) -> bool:
    """Write a network for timm to a safetensors file, with ``metadata`` (JSON values) such as the class names in it.

    Returns:
        Whether timm has such a network; nothing is written if not.
    """
    from safetensors.torch import save_file

    try:
        tensors = export_state(network, name, "timm", options)
    except ValueError:
        return False
    with atomic_write(path) as unfinished:
        # A single entry: safetensors writes several in arbitrary order.
        save_file(tensors, unfinished, {"isda": json.dumps({"network": name, **metadata})})
    return True


@needed_by("An export for ONNX")
def export_onnx(network: Network, image: Tensor, path: Path, metadata: Mapping[str, Any]) -> None:
    """Write a network as an ONNX graph from ``images`` (N, C, H, W), for any N, to ``logits`` (N, classes).

    Args:
        network: in eval mode, in float32.
        image: (1, C, H, W) an input of the network; the graph takes images of its size.
        path: of the file.
        metadata: JSON values, such as the class names; the graph's ``metadata_props["isda"]``.

    Raises:
        MissingExtra: onnx and onnxscript are not installed.
    """
    import onnx  # noqa: F401
    import onnxscript  # noqa: F401

    # With one image the exporter would take N for the constant 1.
    pair = image.expand(2, *image.shape[1:])
    program = torch.onnx.export(
        network,
        (pair,),
        dynamo=True,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    if program is None:
        raise ValueError("torch.onnx.export returned no graph")
    program.model.metadata_props["isda"] = json.dumps(dict(metadata))
    with atomic_write(path) as unfinished:
        program.save(str(unfinished), external_data=False)
