"""Which tensors of a file belong to a backbone: those of its names, whatever these begin with in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

__all__ = ["PREFIXES", "Fitting", "check_values", "fitting_weights"]

PREFIXES = ("", "body.", "backbone.", "features.", "body.features.", "backbone.body.", "module.", "model.")
"""What names may begin with: torchvision's, this package's, those of DenseNets, of wrappers and of other tools."""


class Fitting(NamedTuple):
    """The tensors of a file, apart."""

    found: dict[str, Tensor]
    """Those of the backbone, under its own names."""
    rest: list[str]
    """The names of the others, without the prefix."""


def fitting_weights(wanted: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str) -> Fitting:
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
    check_values(found, wanted, source)
    return Fitting(found, [name.removeprefix(prefix) for name in weights if name.removeprefix(prefix) not in found])


def check_values(given: Mapping[str, Tensor], own: Mapping[str, Tensor], source: str) -> None:
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
