"""Which tensors of a file belong to a backbone: those of its names, whatever these begin with in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

__all__ = ["PREFIXES", "Fitting", "fitting_weights"]

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
        ValueError: names the first tensor that is missing or has another shape.
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
    return Fitting(found, [name.removeprefix(prefix) for name in weights if name.removeprefix(prefix) not in found])
