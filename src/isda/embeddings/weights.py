"""Which of the tensors in a file of weights belong to the body of a network, and whether they fit it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from isda.networks.fitting import check_values

__all__ = ["body_weights", "check_weights", "input_channels"]

BODY = "body."
"""How the names of a body begin in the weights of this package."""

CLASSIFIERS = ("classifier.", "fc.", "head.", "last_linear.", "head_dist.")
"""How the names of a last layer begin, in this package, torchvision and timm: it makes no features."""

COUNT = "num_batches_tracked"
"""Files from before torch counted batches lack it, and only an average without momentum would use it."""


def input_channels(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> int | None:
    """The channels of the images that weights are for, or None where they do not have the first convolution of a body.

    Args:
        given: tensors for the body, in any order.
        own: those of the body, in the order of its layers.

    Example:
        >>> import torch
        >>> own = {"first.weight": torch.zeros(8, 3, 5, 5), "second.weight": torch.zeros(8, 8, 5, 5)}
        >>> input_channels({"second.weight": torch.zeros(8, 8, 5, 5), "first.weight": torch.zeros(8, 1, 5, 5)}, own)
        1
    """
    first = next((name for name, tensor in own.items() if tensor.dim() == 4), None)
    found = given.get(first) if first is not None else None
    return int(found.shape[1]) if found is not None and found.dim() == 4 else None


def body_weights(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the body: without the prefix that this package gives them, and without those of a last layer.

    Args:
        state: of the file.
        own: of the body.
    """
    if any(name.startswith(BODY) for name in state):
        return {name.removeprefix(BODY): tensor for name, tensor in state.items() if name.startswith(BODY)}
    return {name: tensor for name, tensor in state.items() if name in own or not name.startswith(CLASSIFIERS)}


def check_weights(given: Mapping[str, Tensor], own: Mapping[str, Tensor], source: str) -> None:
    """Raise a ValueError that names the first tensor that is missing, left over, of another shape, or not finite.

    Args:
        given: tensors for the body.
        own: those that it has.
        source: where they come from.
    """
    for name, tensor in given.items():
        if name in own and own[name].shape != tensor.shape:
            raise ValueError(
                f"pretrained must have {name} of shape {tuple(own[name].shape)}, got {tuple(tensor.shape)} in {source}"
            )
    missing = [name for name in own if name not in given and not name.endswith(COUNT)]
    unknown = [name for name in given if name not in own]
    for names, wrong in ((missing, "lacks"), (unknown, "has the unknown")):
        if names:
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(f"pretrained must hold the weights of the network, {source} {wrong} {names[0]}{others}")
    check_values(given, own, source)
