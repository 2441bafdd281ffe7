"""What a call of a criterion for several labels per sample was given, checked before any state changes."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from isda import checks
from isda.devices import READ_EVERY, on_host
from isda.functional.patches import Patches
from isda.losses.inputs import (
    Batch,
    check_features,
    check_logits,
    check_weight_shape,
    check_whole,
    grid_of,
    plain_weight,
)
from isda.losses.spatial import as_rows
from isda.losses.targets import SharesMonitor

__all__ = ["LabelsMonitor", "Settings", "check_labels", "ignored_labels"]


class Settings(Protocol):
    """The settings of the criterion that decide what a valid input is."""

    num_classes: int
    feature_dim: int
    ignore_index: int
    ignore_value: float | None
    validate: bool
    shares: SharesMonitor
    labels: LabelsMonitor


def ignored_labels(targets: Tensor, ignore_value: float | None) -> Tensor | None:
    """Where a label is missing, of the shape of the targets; None where no value stands for that.

    Example:
        >>> ignored_labels(torch.tensor([[1.0, -1.0]]), ignore_value=-1)
        tensor([[False,  True]])
        >>> ignored_labels(torch.tensor([[1.0, math.nan]]), ignore_value=math.nan)
        tensor([[False,  True]])
    """
    if ignore_value is None:
        return None
    return targets.isnan() if math.isnan(ignore_value) else targets == ignore_value


class LabelsMonitor:
    """Refuses labels outside 0..1: on the CPU in every call, elsewhere in the first and in every hundredth."""

    def __init__(self) -> None:
        self._calls = 0

    def check(self, targets: Tensor, ignore_value: float | None) -> None:
        """Look at targets (N, K, ...)."""
        self._calls += 1
        if not on_host(targets) and self._calls % READ_EVERY != 1:
            return
        ignored = ignored_labels(targets, ignore_value)
        outside = ((targets >= 0) & (targets <= 1)).logical_not()
        if ignored is not None:
            outside = outside & ~ignored
        bad = int(outside.sum())
        if bad:
            also = "" if ignore_value is None else f" or be ignore_value={ignore_value:g}"
            first = targets.flatten()[outside.flatten().to(torch.uint8).argmax()]
            raise ValueError(
                f"targets must lie in 0..1{also}, got {float(first):g} ({bad} of {targets.numel()} labels are out of "
                "range)"
            )


def check_labels(
    settings: Settings, logits: Tensor, targets: Tensor, features: Tensor | Patches, weight: Tensor
) -> Batch:
    """Bring one call's input into one form, or raise ValueError for anything that does not fit together.

    Every row of the features is of class 0: there is one covariance, and every sample counts, whatever its labels.
    """
    check_whole(logits=logits, targets=targets, features=features)
    check_logits(settings, logits)
    weight = plain_weight(weight)
    check_weight_shape(settings, weight)
    if targets.shape != logits.shape:
        expected = f"the shape of logits, {checks.shape_of(logits)}"
        raise ValueError(f"targets must have {expected}, one label for each, got {checks.shape_of(targets)}")
    check_features(logits, features, settings.feature_dim)
    if settings.validate:
        settings.labels.check(targets, settings.ignore_value)
    rows = as_rows(features)
    classes = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    return Batch(logits, targets, weight, rows, classes, None, grid_of(features))
