"""What bad input gets: one clear sentence, before any state changes, without making a GPU wait.

Shapes are known on the host and are checked at once. Label range and finiteness are values on the device: on the CPU
they are read at once; elsewhere the bad rows are kept out of the statistics, their number is copied to the host in the
background and the error is raised by the next call that finds the copy complete.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def shape_of(tensor: Tensor) -> str:
    """The shape of a tensor as it is written in messages."""
    return str(tuple(tensor.shape))


def check_rows(features: Tensor, targets: Tensor, feature_dim: int) -> None:
    """Features (N, A) and integer targets (N,) that belong together."""
    if features.ndim != 2 or features.shape[1] != feature_dim:
        raise ValueError(f"features must have shape (N, {feature_dim}), got {shape_of(features)}")
    if not features.is_floating_point():
        raise ValueError(f"features must be floating point, got {features.dtype}")
    check_labels_dtype(targets)
    if targets.shape != features.shape[:1]:
        raise ValueError(f"targets must have shape ({len(features)},) to match features, got {shape_of(targets)}")


def check_labels_dtype(targets: Tensor, name: str = "targets") -> None:
    """Class indices are integers."""
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise ValueError(f"{name} must hold integer class indices, got {targets.dtype}")


def check_mask(mask: Tensor | None, length: int) -> None:
    """A mask says yes or no for every row."""
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (length,)):
        raise ValueError(f"mask must be bool of shape ({length},), got {mask.dtype} of shape {shape_of(mask)}")


def label_error(
    targets: Tensor, num_classes: int, ignore_index: int | None = None, name: str = "targets"
) -> str | None:
    """A message naming the first label outside 0..C-1 (other than ``ignore_index``), or None. Reads the device."""
    if targets.numel() == 0:
        return None
    lowest, highest = targets.aminmax()
    if int(lowest) >= 0 and int(highest) < num_classes:
        return None
    outside = (targets < 0) | (targets >= num_classes)
    if ignore_index is not None:
        outside &= targets != ignore_index
    if not bool(outside.any()):
        return None
    labels = targets[outside]
    also = "" if ignore_index is None else f" or ignore_index={ignore_index}"
    return (
        f"{name} must lie in 0..{num_classes - 1}{also}, got {int(labels[0])} "
        f"({len(labels)} of {targets.numel()} labels are out of range)"
    )


def finite_error(features: Tensor) -> str | None:
    """A message with the number of rows that hold NaN or infinity, or None. Reads the device."""
    # A finite sum proves that every entry is finite; the exact count is only taken when it is needed.
    if math.isfinite(float(features.sum(dtype=torch.promote_types(features.dtype, torch.float32)))):
        return None
    bad = int(finite_rows(features).logical_not().sum())
    if bad == 0:
        return None
    return f"features must be finite, got NaN or infinity in {bad} of {len(features)} rows; statistics were not changed"


def finite_rows(features: Tensor) -> Tensor:
    """(N,) whether every entry of the row is finite."""
    return torch.isfinite(features).all(dim=1)


class LateErrors:
    """Counts of bad rows that travel from the device to the host while training goes on."""

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, torch.cuda.Event | None]] = []

    def __reduce__(self) -> tuple[type[LateErrors], tuple[()]]:
        """Copies and pickles start empty: what is under way belongs to this process and this object."""
        return (LateErrors, ())

    def post(self, bad_labels: Tensor, bad_features: Tensor) -> None:
        """Send the number of rows with bad labels and with non-finite features to the host."""
        counts = torch.stack([bad_labels, bad_features])
        if counts.device.type != "cuda":
            self._pending.append((counts, None))
            return
        host = torch.empty(2, dtype=counts.dtype, pin_memory=True)
        host.copy_(counts, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._pending.append((host, event))

    def raise_if_any(self) -> None:
        """Raise for what has arrived; never waits."""
        waiting: list[tuple[Tensor, torch.cuda.Event | None]] = []
        labels = features = 0
        for counts, event in self._pending:
            if event is not None and not event.query():
                waiting.append((counts, event))
                continue
            labels, features = labels + int(counts[0]), features + int(counts[1])
        self._pending = waiting
        if labels or features:
            raise ValueError(
                f"an earlier batch held {labels} labels out of range and {features} rows of features with NaN or "
                "infinity; these rows were kept out of the statistics"
            )


class NonFiniteFeatures(ValueError):
    """Features that hold NaN or infinity: training has diverged."""
