"""Features on their way from a classifier's output to the logits, and one step of that way."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isda.functional.patches import Patches
from isda.recording.sentences import BY_HAND

__all__ = ["Place", "Step", "input_sizes", "signed"]


class Place(NamedTuple):
    """Features on their way from the classifier's output to the logits.

    Attributes:
        features: (..., A, ...), or patches that stand for maps (N, A, h, w).
        axis: which dimension is A, where the output has its C classes.
        shape: the shape of the output at this point; its places may be finer than those of the features.
    """

    features: Tensor | Patches
    axis: int
    shape: torch.Size

    @property
    def is_coarse(self) -> bool:
        """Whether the output was upsampled since."""
        if isinstance(self.features, Patches):
            return self.shape[2:] != self.features.grid
        return _other_sizes(self.features.shape, self.axis) != _other_sizes(self.shape, self.axis)

    @property
    def tensor(self) -> Tensor:
        """The features, patches made."""
        return self.features.maps() if isinstance(self.features, Patches) else self.features


class Step(NamedTuple):
    """One operation.

    Attributes:
        name: of its node in the graph.
        before: the shape of its input.
        apply: what it does to features.
        key: which samples or places it picks, comparable; None where it picks none.
    """

    name: str
    before: torch.Size
    apply: Callable[[Place], Place | None]
    key: Hashable = None

    def __call__(self, place: Place) -> Place:
        """Follow the operation, or raise where it works on the classes."""
        after = self.apply(place)
        if after is None:
            raise ValueError(
                f"the logits come from the classifier through {self.name}, which mixes classes, or places that were "
                f"upsampled; call {BY_HAND} with the features that belong to these logits"
            )
        return after


def input_sizes(node: Any) -> torch.Size:
    """The shape of the input of an operation, where its node keeps it."""
    return torch.Size(node._saved_self_sym_sizes)


def signed(value: int) -> int:
    """Negative dimensions and positions are kept as unsigned numbers in the graph."""
    return value - 2**64 if value >= 2**63 else value


def _other_sizes(shape: torch.Size, axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])
