"""Logits as models hand them out: tensors, dictionaries, outputs with names; tokens with their classes last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from isda.losses.targets import is_soft

__all__ = ["classes_second", "has_classes_last", "logits_of"]

_NAMES = ("logits", "out")


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned: itself, or its entry ``logits`` or ``out``.

    Dictionaries (torchvision's segmentation models), outputs of transformers and named tuples (Inception) have names.

    Raises:
        ValueError: there is no telling which part the logits are.

    Example:
        >>> import torch
        >>> logits_of({"out": torch.zeros(2, 3), "aux": torch.ones(2, 3)})
        tensor([[0., 0., 0.],
                [0., 0., 0.]])
    """
    if isinstance(output, Tensor):
        return output
    for name in _NAMES:
        part = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(part, Tensor):
            return part
    what = type(output).__name__
    if isinstance(output, Mapping):
        what += f" with {', '.join(map(str, output)) or 'nothing'}"
    elif isinstance(output, (tuple, list)):
        what += f" of {len(output)}"
    raise ValueError(f"logits must be a tensor, or an output that has them as logits or out, got a {what}")


def has_classes_last(logits: Tensor, targets: Tensor, num_classes: int) -> bool | None:
    """Whether logits and targets are laid out like tokens, (N, L, C) and (N, L); None where the shapes allow both."""
    wanted = logits.shape if is_soft(targets) else logits.shape[:-1]
    if logits.ndim < 3 or logits.shape[-1] != num_classes or targets.shape != wanted:
        return False
    return True if logits.shape[1] != num_classes else None


def classes_second(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, ..., C) as (N, C, ...), and targets, where they are distributions, likewise."""
    soft = is_soft(targets) and targets.shape == logits.shape
    return logits.movedim(-1, 1), targets.movedim(-1, 1) if soft else targets
