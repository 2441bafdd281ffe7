"""Read weight files without running code, and match their tensors to a backbone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor


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
    except MemoryError:
        raise
    except (SafetensorError, RuntimeError, OSError, EOFError, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{path} cannot be read as weights: {reason}") from error
    except Exception as error:
        # Any other file is read as pickled instructions, which fail in any way; torch then advises to run them.
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
"""What names may begin with: torchvision's, this package's, those of DenseNets, of wrappers and of other tools."""


class MatchedWeights(NamedTuple):
    """The tensors of a file, apart."""

    found: dict[str, Tensor]
    """Those of the backbone, under its own names."""
    rest: list[str]
    """The names of the others, without the prefix."""


def match_weights(wanted: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str) -> MatchedWeights:
    """Find the tensors of a backbone among those of a file.

    Args:
        wanted: the backbone's, all of which must be there, after one of the PREFIXES.
        weights: by name.
        source: where they come from, for messages.

    Raises:
        ValueError: names the first tensor that is missing, has another shape, or values that no weights have.
    """
    # Older files lack the counters of batch normalisation, which nothing here reads.
    needed = [name for name in wanted if not name.endswith("num_batches_tracked")]
    prefix = max(WEIGHT_PREFIXES, key=lambda one: sum(one + name in weights for name in needed))
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
    check_weight_values(found, wanted, source)
    return MatchedWeights(
        found, [name.removeprefix(prefix) for name in weights if name.removeprefix(prefix) not in found]
    )


def check_weight_values(given: Mapping[str, Tensor], own: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError unless the tensors for floating-point weights are dense, floating-point and finite.

    Nor may a running variance of batch norm be negative.

    ``load_state_dict`` would convert integers, truth values and complex numbers, and keep NaN.

    Args:
        given: tensors of a file, under the names of a network.
        own: those of the network.
        source: where they come from, for messages.

    Example:
        >>> import torch
        >>> check_values({"weight": torch.tensor([1.0, float("nan")])}, {"weight": torch.zeros(2)}, "a.safetensors")
        Traceback (most recent call last):
        ...
        ValueError: a.safetensors must hold finite weights, but weight has 1 NaN or infinite values of 2
    """
    for name, tensor in given.items():
        if name not in own or not own[name].is_floating_point():
            continue
        if not tensor.is_floating_point() or tensor.is_quantized or tensor.layout != own[name].layout:
            kind = f"{tensor.dtype}".removeprefix("torch.")
            raise ValueError(
                f"{source} must hold dense floating-point weights, but {name} is {tensor.layout} of {kind}"
            )
        wrong = tensor.numel() - int(tensor.isfinite().sum())
        if wrong:
            raise ValueError(
                f"{source} must hold finite weights, but {name} has {wrong} NaN or infinite values of {tensor.numel()}"
            )
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise ValueError(f"{source} must hold variances of at least 0, but {name} has {float(tensor.min()):.3g}")
