"""One forward pass of one classifier."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from isda.functional.patches import Patches, dense
from isda.recording.layers import base_of, bias_of, features_of, sizes_of, weight_of
from isda.recording.sentences import BY_HAND

__all__ = ["NOTHING", "Record"]


class Record:
    """One forward pass of the classifier.

    Attributes:
        head: the classifier.
        features: its input, detached: it keeps no graph alive. None where the classifier was in eval mode.
        output: its output, until a graph leads to this record.
        address: where that output was kept in memory.
        shape: the shape of that output, where it is not kept.
        joining: whether the pass ran inside the join() of DistributedDataParallel, for uneven numbers of batches.
    """

    joining = False
    address = 0
    shape: torch.Size | None = None
    _strengths: dict[Hashable, float] | None = None

    def __init__(self, head: Any = None, features: Tensor | None = None, output: Tensor | None = None) -> None:
        self.head, self.features, self.output = head, features, output
        self._weight, self._bias = (None, None) if features is None else _parameters_of_this_pass(head)

    @property
    def weight(self) -> Tensor:
        """The weight of the classifier."""
        return weight_of(self.head) if self._weight is None else self._weight

    @property
    def bias(self) -> Tensor | None:
        """The bias of the classifier."""
        return bias_of(self.head) if self._weight is None else self._bias

    @property
    def strengths(self) -> dict[Hashable, float]:
        """Lambda of the calls that fed the statistics with this pass, by the part of it that they used."""
        if self._strengths is None:
            self._strengths = {}
        return self._strengths

    @property
    def is_known(self) -> bool:
        """Whether logits without a graph can still be recognised as its output."""
        return self.output is not None or self.shape is not None

    def made(self, logits: Tensor) -> bool:
        """Whether logits without a graph are the output of this pass or a view of it: no other tensor lives there."""
        if self.output is None:
            return False
        start = self.output.data_ptr()
        return self.output is logits or 0 < start <= logits.data_ptr() < start + self.output.nbytes

    def laid_out(self, shape: torch.Size) -> tuple[Tensor | Patches, int]:
        """The features in the layout of logits of this shape, and which of their dimensions is A."""
        if self.features is None:
            raise ValueError("the classifier must be in training mode to record its input, got eval mode")
        features = features_of(self.head, self.features)
        if isinstance(features, Tensor) and isinstance(base_of(self.head), nn.Linear):
            if shape == (*features.shape[:-1], sizes_of(self.head)[0]):
                return features, len(shape) - 1
            features = features.flatten(0, -2) if len(shape) == 2 else features.movedim(-1, 1)
        elif len(shape) == 2:
            features = dense(features) if isinstance(features, Patches) else features.movedim(1, -1).flatten(0, -2)
        samples = features.samples if isinstance(features, Patches) else len(features)
        if samples != shape[0]:
            raise ValueError(
                f"the classifier was given {samples} samples, but logits has {shape[0]}; where only a part "
                f"of a batch is used, pass the same part of its features: {BY_HAND}"
            )
        return features, 1


def _parameters_of_this_pass(head: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias that exist during a pass only; (None, None) for classifiers that show theirs at any time.

    The hooks of torch.nn.utils.weight_norm make a weight for every pass. FullyShardedDataParallel shows a part of a
    larger tensor that it frees after the pass: a copy of it stays, and passes its gradient on.
    """
    layer = base_of(head)
    if parametrize.is_parametrized(layer, "weight"):
        return None, None
    if isinstance(layer._parameters.get("weight"), nn.Parameter):
        return None, None
    weight, bias = weight_of(head), bias_of(head)
    if weight._is_view():
        weight, bias = weight.clone(), None if bias is None else bias.clone()
    return weight, bias


NOTHING = Record()
