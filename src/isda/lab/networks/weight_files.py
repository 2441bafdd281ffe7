"""Read weight files without running code, and match their tensors to a backbone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def read_weights(path: Path) -> dict[str, Tensor]:
    """The named tensors of a file of safetensors or torch.save, read without running code from it.

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
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as weights: {error}") from error
    except Exception as error:
        # torch reads any other file as a pickle, which can fail in any way, and then advises to unpickle it.
        raise ValueError(
            f"{path} cannot be read as weights: it must be a file of safetensors or of torch.save with tensors only"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise ValueError(f"{path} must hold named tensors, got {type(content).__name__}")
    return content


WEIGHT_PREFIXES = ("", "body.", "backbone.", "features.", "body.features.", "backbone.body.", "module.", "model.")
"""Prefixes of names in files: of torchvision, this package, DenseNets, wrappers and other tools."""

_BATCH_COUNTER = "num_batches_tracked"
_COMPUTED_BUFFERS = (_BATCH_COUNTER, "attn_mask", "relative_position_index")
"""Suffixes of buffers that older files hold and networks compute."""


def strip_prefix(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file without the one of WEIGHT_PREFIXES that gives most of the names of ``own``."""
    prefix = max(WEIGHT_PREFIXES, key=lambda prefix: sum(prefix + name in weights for name in own))
    others = {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)}
    return others | {name.removeprefix(prefix): t for name, t in weights.items() if name.startswith(prefix)}


def match_weights(
    own: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    source: str,
    classifiers: tuple[str, ...] | None = None,
) -> dict[str, Tensor]:
    """The tensors of a backbone among those of a file, under the backbone's names.

    Args:
        own: the backbone's tensors; the file must hold all of them, except counters of batch normalisation.
        weights: the file's tensors, which may have one of WEIGHT_PREFIXES.
        source: the file, for messages.
        classifiers: prefixes of the names of a classifier, the only other tensors that the file may hold; None if it
            may hold any others.

    Raises:
        ValueError: names the first tensor that is missing, of another shape, of another network, or not finite.
    """
    given = strip_prefix(own, weights)
    required = [name for name in own if not name.endswith(_BATCH_COUNTER)]
    missing = [name for name in required if name not in given]
    if missing:
        raise ValueError(
            f"{source} must hold the weights of the backbone, it lacks {len(missing)} of {len(required)}, the first of "
            f"them {missing[0]}"
        )
    for name in required:
        if given[name].shape != own[name].shape:
            raise ValueError(
                f"{source} must fit the backbone, but {name} is {tuple(given[name].shape)}, not "
                f"{tuple(own[name].shape)}"
            )
    if classifiers is not None:
        for name in given:
            if name not in own and not name.startswith(classifiers) and not name.endswith(_COMPUTED_BUFFERS):
                raise ValueError(f"{source} must hold the weights of the backbone, which has no {name}")
    matched = {name: given[name] for name in own if name in given}
    check_weight_values(matched, own, source)
    return matched


def check_weight_values(given: Mapping[str, Tensor], own: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError unless the weights of floating-point parameters are floating-point numbers, and finite.

    ``load_state_dict`` would convert integers, booleans and complex numbers, and keep NaN.

    Example:
        >>> check_weight_values({"weight": torch.tensor([1.0, float("nan")])}, {"weight": torch.zeros(2)}, "a.pth")
        Traceback (most recent call last):
        ...
        ValueError: a.pth must hold finite weights, but weight has 1 NaN or infinite values of 2
    """
    for name, tensor in given.items():
        if name not in own or not own[name].is_floating_point():
            continue
        if not tensor.is_floating_point() or tensor.layout != torch.strided:
            raise ValueError(
                f"{source} must hold dense floating-point weights, but {name} is {tensor.layout} of {tensor.dtype}"
            )
        wrong = tensor.numel() - int(tensor.isfinite().sum())
        if wrong:
            raise ValueError(
                f"{source} must hold finite weights, but {name} has {wrong} NaN or infinite values of {tensor.numel()}"
            )
