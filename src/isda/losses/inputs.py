"""What a call of the criterion was given, checked and brought into one form before any state changes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from isda import checks
from isda.devices import on_host
from isda.functional.patches import Patches
from isda.losses.spatial import as_rows, resize_labels
from isda.losses.targets import SharesMonitor, is_soft
from isda.recording import Found, Recorder

__all__ = [
    "Batch",
    "Settings",
    "attached",
    "check_batch",
    "check_features",
    "check_logits",
    "check_weight_shape",
    "check_whole",
    "grid_of",
    "plain_weight",
    "recorded",
]


class Settings(Protocol):
    """The settings of the criterion that decide what a valid input is."""

    num_classes: int
    feature_dim: int
    ignore_index: int
    validate: bool
    shares: SharesMonitor


def recorded(
    recorder: Recorder | None, logits: Tensor, features: Tensor | None, weight: Tensor | None, *, verify: bool
) -> tuple[Tensor | Patches | None, Tensor | None, Found | None]:
    """Features and weight as given or as the attached classifier recorded them, and what was recorded.

    No features in eval mode, and neither for logits without a graph that are not the classifier's.
    """
    if features is not None and weight is not None:
        return features, weight, None
    recorder = attached(recorder, features, weight)
    if features is not None:
        return features, recorder.take_weight(logits, verify=verify), None
    found = recorder.find(logits, verify=verify)
    if found is None:
        return None, weight, None
    return found.rows_for(logits), found.weight if weight is None else weight, found


def attached(recorder: Recorder | None, features: Tensor | None, weight: Tensor | None) -> Recorder:
    """The recorder, or the error that names what has to be given without one."""
    if recorder is None:
        missing = " and ".join(n for n, given in (("features", features), ("weight", weight)) if given is None)
        raise ValueError(
            f"{missing} must be given, for example criterion(logits, targets, features=features, "
            "weight=head.weight); or use ISDALoss.attach(model, ...), which records them"
        )
    return recorder


class Batch(NamedTuple):
    """One call's input.

    Attributes:
        logits: (N, C, ...) as given.
        targets: as given, at label resolution.
        weight: (C, A).
        features: (rows, A) or None.
        classes: (rows,) the class of each row of features: its label, or the largest share of a soft target. On the
            CPU 0 where the label is ignored, elsewhere as given.
        counts: (rows,) False where the label is ignored; None when every row counts.
        grid: spatial size of the features, which is where variances are computed; empty for plain rows.
    """

    logits: Tensor
    targets: Tensor
    weight: Tensor
    features: Tensor | Patches | None
    classes: Tensor
    counts: Tensor | None
    grid: torch.Size


def check_batch(
    settings: Settings, logits: Tensor, targets: Tensor, features: Tensor | Patches | None, weight: Tensor
) -> Batch:
    """Bring one call's input into one form, or raise ValueError for anything that does not fit together."""
    check_whole(logits=logits, targets=targets, features=features)
    check_logits(settings, logits)
    weight = plain_weight(weight)
    check_weight_shape(settings, weight)
    _check_targets(logits, targets)
    grid = logits.shape[2:]
    if features is not None:
        check_features(logits, features, settings.feature_dim)
        grid = grid_of(features)
        _check_sizes(logits, targets, grid)
        features = as_rows(features)
    if is_soft(targets):
        classes = targets.argmax(1)
        if settings.validate:
            settings.shares.check(targets)
            if not on_host(targets):
                # A row that is not finite has no class: -1 keeps it out of the statistics, where it is counted as bad.
                classes = classes.masked_fill(targets.sum(1).isfinite().logical_not(), -1)
        return Batch(logits, targets, weight, features, classes.flatten(), None, grid)
    targets = targets.long()
    clean = _labels_are_clean(settings, targets)
    labels = targets if logits.ndim == 2 else resize_labels(targets, grid).flatten()
    if clean:
        return Batch(logits, targets, weight, features, labels, None, grid)
    counts = labels != settings.ignore_index
    if on_host(labels):
        labels = labels.masked_fill(~counts, 0)
    # Elsewhere labels out of range have not been looked for: covariance.update reports them, the loss itself asserts.
    return Batch(logits, targets, weight, features, labels, counts, grid)


def check_whole(**tensors: Tensor | Patches | None) -> None:
    """Refuse tensors that are spread over processes; a weight may be."""
    for name, tensor in tensors.items():
        if type(tensor).__name__ == "DTensor":
            raise ValueError(f"{name} must be an ordinary tensor, got a DTensor; pass its full_tensor()")


def check_logits(settings: Settings, logits: Tensor) -> None:
    """Floating point logits (N, C, ...) of at least one sample."""
    if logits.ndim < 2 or logits.shape[1] != settings.num_classes:
        raise ValueError(f"logits must have shape (N, {settings.num_classes}, ...), got {checks.shape_of(logits)}")
    if logits.numel() == 0:
        raise ValueError(f"logits must hold at least one sample, got an empty batch {checks.shape_of(logits)}")
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point, got {logits.dtype}")


def check_weight_shape(settings: Settings, weight: Tensor) -> None:
    """The weight of the classifier, (C, A)."""
    expected = (settings.num_classes, settings.feature_dim)
    if weight.shape != expected:
        raise ValueError(f"weight must have shape {expected}, got {checks.shape_of(weight)}")


def _labels_are_clean(settings: Settings, targets: Tensor) -> bool:
    """Whether every label is known to lie in 0..C-1 and none is ignored; raises for labels out of range."""
    if not on_host(targets):
        return False
    low, high = (int(value) for value in targets.aminmax())
    if low >= 0 and high < settings.num_classes and not 0 <= settings.ignore_index < settings.num_classes:
        return True
    if settings.validate:
        message = checks.label_error(targets, settings.num_classes, settings.ignore_index)
        if message is not None:
            raise ValueError(message)
    return False


def plain_weight(weight: Tensor) -> Tensor:
    """(C, A) ordinary tensor from the weight of a linear layer or a 1x1 convolution, sharded or not.

    A DTensor is gathered; its gradient is averaged over the processes that hold it, as data parallel training does
    (where every process computes the same gradient, as in tensor parallel training, the average is that gradient).
    """
    if type(weight).__name__ == "DTensor":
        try:
            from torch.distributed.tensor import Partial
        except ImportError:  # torch 2.4
            from torch.distributed._tensor import Partial  # type: ignore[attr-defined]

        mesh = weight.device_mesh  # type: ignore[attr-defined]
        weight = weight.full_tensor(grad_placements=[Partial("sum")] * mesh.ndim)  # type: ignore[attr-defined]
        if weight.requires_grad:
            # Not Partial("avg"): without NCCL, torch 2.4 adds up and does not divide.
            weight.register_hook(lambda gradient: gradient / mesh.size())
    return weight.flatten(1) if weight.ndim > 2 and weight.shape[2:].numel() == 1 else weight


def _check_targets(logits: Tensor, targets: Tensor) -> None:
    if is_soft(targets):
        if targets.shape != logits.shape:
            expected = f"the shape of logits, {checks.shape_of(logits)}"
            raise ValueError(f"targets given as distributions must have {expected}, got {checks.shape_of(targets)}")
        return
    checks.check_labels_dtype(targets)
    if targets.ndim != logits.ndim - 1 or len(targets) != len(logits):
        expected = (
            f"({len(logits)},)" if logits.ndim == 2 else f"({len(logits)}, " + "..., " * (logits.ndim - 3) + "...)"
        )
        raise ValueError(
            f"targets must have shape {expected} for logits {checks.shape_of(logits)}, got {checks.shape_of(targets)}"
        )
    if targets.numel() == 0:
        raise ValueError(f"targets must hold at least one label, got {checks.shape_of(targets)}")


def grid_of(features: Tensor | Patches) -> torch.Size:
    """The spatial size of features (N, A, ...)."""
    return features.grid if isinstance(features, Patches) else features.shape[2:]


def check_features(logits: Tensor, features: Tensor | Patches, dim: int) -> None:
    """Floating point features (N, A, ...) for the samples of the logits, of any spatial size."""
    if isinstance(features, Patches):
        if (logits.ndim, len(logits), dim) != (4, features.samples, features.shape[1]):
            sizes = f"{features.shape[1]} numbers at the places of {features.samples} images"
            raise ValueError(
                f"features must be of the {len(logits)} samples of logits, {dim} numbers each, got {sizes}"
            )
        return
    if features.ndim != logits.ndim or len(features) != len(logits) or features.shape[1] != dim:
        expected = f"({len(logits)}, {dim}{', ...' * (logits.ndim - 2)})"
        raise ValueError(
            f"features must have shape {expected} for logits {checks.shape_of(logits)}, got {checks.shape_of(features)}"
        )
    if features.numel() == 0:
        raise ValueError(f"features must hold at least one row, got {checks.shape_of(features)}")
    if not features.is_floating_point():
        raise ValueError(f"features must be floating point, got {features.dtype}")


def _check_sizes(logits: Tensor, targets: Tensor, grid: torch.Size) -> None:
    if is_soft(targets) and grid != logits.shape[2:]:
        raise ValueError(
            f"features must have the spatial size of targets given as distributions, {tuple(targets.shape[2:])}, got "
            f"{tuple(grid)}"
        )
