"""A call of a criterion inside torch.compile or a CUDA graph: no value is read, and all state is in buffers.

Lambda and the step are tensors, bad rows are counted in a buffer that ``eval()`` and ``state_dict()`` look at, and the
monitors rest. The features are those that the hook has recorded in the same graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isda.attach import EXPLICIT_CALL, RecordedFeatures
from isda.functional.grouping import frozen
from isda.functional.patches import Patches
from isda.losses.targets import classes_second, has_classes_last, logits_of

if TYPE_CHECKING:
    from isda.losses.base import AugmentedLoss


def is_recordable(criterion: AugmentedLoss) -> bool:
    """Whether a call can be part of a graph; what exchanges data with other processes, or keeps batches, cannot."""
    samples = criterion._samples
    if not criterion._records_graphs or (samples is not None and samples.keeps_batches):
        return False
    return criterion.covariance._world_size() == 1


def recorded_strength(criterion: AugmentedLoss, strength: float | None) -> Tensor:
    """Lambda of a call, without dimensions, in the dtype of the statistics."""
    dtype, device = criterion.covariance.dtype, criterion.covariance.count.device
    if strength is not None:
        # A product, because a graph takes the number as a symbol here and as a constant in torch.full.
        return torch.ones((), dtype=dtype, device=device) * strength
    if criterion._held:
        return criterion.last_strength.to(dtype)
    return frozen(criterion.schedule.recorded_strength(dtype))


def recorded_loss(
    criterion: AugmentedLoss,
    logits: Any,
    targets: Tensor,
    features: Tensor | None,
    weight: Tensor | None,
    strength: float | None,
) -> Tensor:
    """The loss of a call, which updates statistics and schedule in training mode; see AugmentedLoss.forward."""
    logits = logits_of(logits)
    recorder = criterion._recorder
    record = None
    if criterion.training and features is None and recorder is not None:
        record = recorder.take_recorded(logits)
    if recorder is not None:
        recorder.clear()
    if not criterion.training or (record is not None and record.rows_for(logits) is None):
        if recorder is not None and has_classes_last(logits, targets, criterion.num_classes):
            logits, targets = classes_second(logits, targets)
        return criterion._plain_loss(logits, targets)
    rows: Tensor | Patches | None = features
    if record is not None:
        rows = record.rows_for(logits)
        weight = record.weight if weight is None else weight
        if record.has_classes_last(logits):
            logits, targets = classes_second(logits, targets)
    if rows is None or weight is None:
        if criterion._needs_features:
            raise ValueError(f"features and weight must be given, for example {EXPLICIT_CALL}")
        return criterion._loss_without_features(logits, targets)
    inputs = criterion._check_inputs(logits, targets, rows, weight)
    groups = criterion._groups(inputs)
    used = recorded_strength(criterion, strength)
    if not criterion._held:
        criterion._update_statistics(inputs, groups)
    loss = criterion._loss(inputs, groups, used)
    if not criterion._held:
        criterion.last_strength.copy_(used)
        criterion._last_strength = None
        if strength is None:
            criterion.schedule.record_advance()
    return loss


def recorded_weight(criterion: AugmentedLoss, logits: Tensor, weight: Tensor | None) -> Tensor:
    """The weight of the classifier, as given or as recorded in this graph."""
    if weight is not None:
        return weight
    record: RecordedFeatures = criterion._require_recorder("weight").take_recorded(logits)
    return record.weight
