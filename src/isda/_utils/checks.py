"""Input validation: ValueError before any state changes, without a device synchronisation.

Shapes are checked at once. Label range and finiteness are checked at once on the CPU; on other devices bad
rows are masked and counted, and the error is raised in the first and every hundredth call, by state_dict()
and by eval().
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from isda._utils.devices import READ_EVERY

_MOST_ROWS = 2.0**40
_LARGEST_STRENGTH = math.sqrt(torch.finfo(torch.float32).max)
_OWN = ("isda.", "torch.")


class NonFiniteFeatures(ValueError):
    """Features that hold NaN or infinity, or whose squares overflow: training has diverged."""


def warn(message: str) -> None:
    """Warn, naming the innermost line outside isda and torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and f"{frame.f_globals.get('__name__', '')}.".startswith(_OWN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def shape_of(tensor: Tensor) -> str:
    """The shape of a tensor as it is written in messages."""
    return str(tuple(tensor.shape))


def positive_integer(name: str, value: object) -> int:
    """Return ``value`` if it is an integer from 1 to 10^9.

    Example:
        >>> positive_integer("num_classes", 10)
        10
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    if value > 10**9:
        raise ValueError(f"{name} must be at most 10^9, got {value!r}")
    return value


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    """A tensor of exactly this shape."""
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name} must have shape {expected}, got {shape_of(tensor)}")


def check_floating_point(name: str, tensor: Tensor) -> None:
    """A tensor of floating point numbers."""
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {tensor.dtype}")


def check_rows(features: Tensor, targets: Tensor, feature_dim: int) -> None:
    """Features (N, A) and integer targets (N,) that belong together."""
    if features.ndim != 2 or features.shape[1] != feature_dim:
        raise ValueError(f"features must have shape (N, {feature_dim}), got {shape_of(features)}")
    check_floating_point("features", features)
    check_labels_dtype(targets)
    if targets.shape != features.shape[:1]:
        raise ValueError(f"targets must have shape ({len(features)},) to match features, got {shape_of(targets)}")


def check_labels_dtype(targets: Tensor, name: str = "targets") -> None:
    """Class indices are integers."""
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise ValueError(f"{name} must hold integer class indices, got {targets.dtype}")


def check_mask(mask: Tensor | None, length: int) -> None:
    """A boolean mask with an entry for every row, or None."""
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (length,)):
        raise ValueError(f"mask must be bool of shape ({length},), got {mask.dtype} of shape {shape_of(mask)}")


def check_strength(name: str, value: float) -> None:
    """A strength lambda: finite, >= 0 and so small that lambda times a variance as large is finite in float32.

    Example:
        >>> check_strength("lambda_0", 1e300)
        Traceback (most recent call last):
        ...
        ValueError: lambda_0 must be at most 1.8e+19, or lambda times a variance overflows float32, got 1e+300
    """
    check_number(name, value)
    if value > _LARGEST_STRENGTH:
        limit = f"at most {_LARGEST_STRENGTH:.2g}, or lambda times a variance overflows float32"
        raise ValueError(f"{name} must be {limit}, got {value!r}")


def check_integer(name: str, value: Any, lowest: int = 0) -> int:
    """An integer of at least ``lowest``, as an int.

    Example:
        >>> check_integer("rank", 2.5, lowest=1)
        Traceback (most recent call last):
        ...
        ValueError: rank must be a positive integer, got 2.5
    """
    if isinstance(value, str) or not (value >= lowest and value % 1 == 0):
        expected = "a positive integer" if lowest == 1 else f"an integer >= {lowest}"
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return int(value)


def check_number(name: str, value: float, low: float = 0.0, high: float = math.inf) -> float:
    """A finite number from ``low`` to ``high``, as a float."""
    if not (low <= value <= high and math.isfinite(value)):
        expected = f"a finite number >= {low:g}" if high == math.inf else f"a number in {low:g}..{high:g}"
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return float(value)


def check_state(module: nn.Module, state: Mapping[str, Any], prefix: str) -> None:
    """Let every part of ``module`` that has a method ``_check_state`` look at a state before any of it is loaded.

    Args:
        module: whose state it is.
        state: what ``load_state_dict`` was given.
        prefix: of the module's names in it.
    """
    for name, part in module.named_modules():
        check = getattr(part, "_check_state", None)
        if check is not None:
            check(state, f"{prefix}{name}." if name else prefix)


def check_entry(name: str, value: object, lowest: float = -math.inf) -> None:
    """Refuse an entry of a state that holds NaN, infinity or numbers below ``lowest``. Reads the device.

    What is no tensor, or one without values here (meta, sharded), is left to torch.
    """
    if not isinstance(value, Tensor) or value.is_meta or value.numel() == 0 or type(value).__name__ == "DTensor":
        return
    low, high = (float(extreme) for extreme in (value.detach().amin(), value.detach().amax()))  # they pass NaN on
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"{name} in the state must be finite, got NaN or infinity; statistics were not changed")
    if low < lowest:
        raise ValueError(f"{name} in the state must be at least {lowest:g}, got {low:g}; statistics were not changed")


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


def largest_feature(dtype: torch.dtype) -> float:
    """The magnitude from which features would overflow a scatter of this dtype within 2^40 rows: 9e12 for float32.

    A row adds at most (2 |x|)^2 to an entry of the scatter.
    """
    return math.sqrt(torch.finfo(dtype).max / _MOST_ROWS) / 2


def finite_error(features: Tensor, below: float = math.inf) -> NonFiniteFeatures | None:
    """The error for rows that hold NaN, infinity or magnitudes not ``below``, or None. Reads the device.

    Args:
        features: (N, A).
        below: see ``largest_feature``; infinity where no squares are taken.
    """
    if features.numel() == 0:
        return None
    low, high = (float(value) for value in features.aminmax())
    if -below < low and high < below:  # false for NaN
        return None
    rows, unchanged = len(features), "statistics were not changed"
    bad = rows - int(finite_rows(features).sum())
    if bad:
        return NonFiniteFeatures(f"features must be finite, got NaN or infinity in {bad} of {rows} rows; {unchanged}")
    bad = rows - int(finite_rows(features, below).sum())
    return NonFiniteFeatures(
        f"features must be smaller than {below:.2g}, or their squares overflow statistics in {features.dtype}, got "
        f"{max(-low, high):.2g} ({bad} of {rows} rows are too large); {unchanged}"
    )


def finite_rows(features: Tensor, below: float = math.inf) -> Tensor:
    """(N,) whether every entry of the row is finite and ``below``: its largest magnitude is, and NaN is passed on."""
    return torch.linalg.vector_norm(features, math.inf, dim=1) < below


def count_valid_rows(
    features: Tensor, targets: Tensor, labels: Tensor, mask: Tensor | None, below: float
) -> tuple[Tensor, Tensor]:
    """(N,) the rows that may enter the statistics, and (3,) how many there are, have a label, and are valid.

    See DeferredErrors.valid_rows for the arguments.
    """
    labelled = labels == targets
    if mask is None:
        mask = torch.ones_like(labelled)
    else:
        labelled = labelled & mask
    valid = labelled & finite_rows(features, below)
    return valid, torch.stack([mask, labelled, valid]).sum(1)


class DeferredErrors:
    """Numbers of rows, and of bad ones, counted on the device and read by the host in every hundredth call."""

    def __init__(self) -> None:
        self._counts: Tensor | None = None
        self._calls, self._warned = 0, False

    def __reduce__(self) -> tuple[type[DeferredErrors], tuple[()]]:
        """Copies and pickles start empty: what was counted belongs to this process and this object."""
        return (DeferredErrors, ())

    def valid_rows(
        self, features: Tensor, targets: Tensor, labels: Tensor, mask: Tensor | None, below: float = math.inf
    ) -> Tensor:
        """(N,) the rows that may enter the statistics; the others are counted.

        Args:
            features: (N, A).
            targets: (N,) labels as given.
            labels: (N,) the same, but 0..C-1 where they lie outside.
            mask: (N,) the rows that are meant to count, or None for all.
            below: what features have to be below; see ``largest_feature``.
        """
        valid, counts = count_valid_rows(features, targets, labels, mask, below)
        if self._counts is not None and self._counts.device != counts.device:
            self.raise_if_any()
        self.add(counts)
        self._calls += 1
        if self._calls % READ_EVERY == 1:
            self.raise_if_any()
        return valid

    def add(self, counts: Tensor) -> None:
        """Add up numbers of rows (3,)."""
        # Not in place: in inference mode that would spoil the next call outside of it.
        self._counts = counts if self._counts is None else self._counts + counts

    def raise_if_any(self) -> None:
        """Raise for the bad rows since the last time, or warn if there were no rows at all; reads the device."""
        if self._counts is None:
            return
        wanted, labelled, valid = self._counts.tolist()
        self._counts = None
        if wanted == 0:
            self.warn_of_empty()
        if valid < wanted:
            kind = NonFiniteFeatures if valid < labelled else ValueError
            raise kind(
                f"features and targets held {wanted - labelled} labels out of range and {labelled - valid} rows of "
                f"features with NaN or infinity, or too large for their squares, among the last {wanted} rows; they "
                "were kept out of the statistics (a soft target that is not finite counts as a label out of range)"
            )

    def warn_of_empty(self) -> None:
        """Warn, once, that no row of a batch counts; on a device, of all batches since it was looked at."""
        if not self._warned:
            self._warned = True
            warn(
                "every target of a batch is ignored: the statistics learn nothing from it, and with reduction='mean' "
                "its loss is NaN; check the labels and ignore_index"
            )
