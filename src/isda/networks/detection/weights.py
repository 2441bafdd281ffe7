"""Weights of a trained classifier into the backbone of a detector, whatever their names begin with."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["load_backbone_weights", "read_weights"]

PREFIXES = ("", "body.", "backbone.", "features.", "body.features.", "backbone.body.", "module.", "model.")
"""What names may begin with: torchvision's, this package's, those of DenseNets, of wrappers and of other tools."""


def read_weights(path: Path) -> dict[str, Tensor]:
    """The named tensors of a file of safetensors or of torch.save; nothing in it is run.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ValueError(f"the weights {path} are not a file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be read as weights: {reason}") from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} must hold named tensors, got {type(content).__name__}")
    return content


def load_backbone_weights(body: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Give a detector's backbone (``detector.backbone.body``) the weights of a classifier.

    Args:
        body: whose tensors must all be among the weights, after one of the PREFIXES.
        weights: by name; those of layers that the detector does not have, such as a classifier, are left.
        source: where they come from, for messages.

    Raises:
        ValueError: names the first tensor that is missing or has another shape.
    """
    wanted = body.state_dict()
    # Older files lack the counters of batch normalisation, which nothing here reads.
    needed = [name for name in wanted if not name.endswith("num_batches_tracked")]
    prefix = max(PREFIXES, key=lambda one: sum(one + name in weights for name in needed))
    found = {name: weights[prefix + name] for name in wanted if prefix + name in weights}
    missing = [name for name in needed if name not in found]
    if missing:
        raise ValueError(
            f"{source} must hold the weights of the backbone, it lacks {len(missing)} of {len(needed)}, the first of "
            f"them {missing[0]}"
        )
    for name in needed:
        if found[name].shape != wanted[name].shape:
            raise ValueError(
                f"{source} must fit the backbone, but {name} is {tuple(found[name].shape)}, not "
                f"{tuple(wanted[name].shape)}"
            )
    body.load_state_dict(wanted | found)
