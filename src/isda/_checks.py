"""Checks of what a user passes in: one sentence that names what was wrong, before any state changes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real
from typing import Any

import torch
from torch import Tensor


class NonFiniteError(ValueError):
    """Features with NaN or infinity: training has diverged."""


def on_host(tensor: Tensor) -> bool:
    """Whether Python may look at values: on a CPU, outside a compiled graph. Elsewhere it would wait, or could not."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """One of the choices.

    Example:
        >>> check_choice("bound", "tilt", ["jensen", "tilted"])
        Traceback (most recent call last):
        ...
        ValueError: did you mean 'tilted'? bound must be one of jensen, tilted, got 'tilt'
    """
    choices = list(choices)
    if value in choices:
        return value
    close = get_close_matches(str(value), choices, 1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"{suggestion}{name} must be one of {', '.join(choices)}, got {value!r}")


def check_number(name: str, value: Any, low: float = 0.0, high: float = math.inf) -> float:
    """A finite number in low..high, as a float."""
    number = isinstance(value, Real)
    if number and math.isfinite(value) and low <= value <= high:
        return float(value)
    expected = f"a finite number of at least {low:g}" if high == math.inf else f"a number in {low:g}..{high:g}"
    raise ValueError(f"{name} must be {expected}, got {value!r}")


def check_integer(name: str, value: Any, low: int = 1) -> int:
    """An integer of at least ``low``; 20.0 is one, True is not."""
    number = isinstance(value, Real) and value is not True
    if number and value >= low and value % 1 == 0:
        return int(value)
    raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")


def check_class_weight(name: str, value: Tensor | None, size: int) -> None:
    """None, or a tensor (C,)."""
    if value is not None and (value.shape != (size,) or not value.is_floating_point()):
        raise ValueError(f"{name} must be a floating point tensor of shape ({size},), got {describe(value)}")


def check_weight(weight: Any, num_classes: int, feature_dim: int, device: torch.device) -> Tensor:
    """The classifier's weight as (C, A); a 1x1 convolution's is flattened."""
    expected = f"weight must be a dense tensor of shape ({num_classes}, {feature_dim}) on {device}"
    if not isinstance(weight, Tensor) or weight.layout != torch.strided or not weight.is_floating_point():
        raise ValueError(f"{expected}, got {describe(weight)}")
    if type(weight).__name__ == "DTensor":
        weight = weight.full_tensor()  # type: ignore[attr-defined]
    if weight.device != device or weight.flatten(1).shape != (num_classes, feature_dim):
        raise ValueError(f"{expected}, got {describe(weight)}")
    return weight.flatten(1)


def check_labels(labels: Tensor, num_classes: int, counted: Tensor | None = None) -> None:
    """Integer labels in 0..C-1 where they are counted; values are looked at on the host only."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"targets must hold integer class indices, got {labels.dtype}")
    if not on_host(labels) or labels.numel() == 0:
        return
    low, high = labels.aminmax()
    if low >= 0 and high < num_classes:
        return
    wrong = (labels < 0) | (labels >= num_classes)
    if counted is not None:
        wrong &= counted
    if wrong.any():
        raise ValueError(
            f"targets must lie in 0..{num_classes - 1} or be ignore_index, got {int(labels[wrong][0])} "
            f"({int(wrong.sum())} of {labels.numel()} labels are out of range)"
        )


def check_rows(features: Any, labels: Tensor, feature_dim: int) -> None:
    """Features (N, A) of N labels, finite; values are looked at on the host only."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        raise ValueError(f"features must be a floating point tensor, got {describe(features)}")
    if features.shape != (len(labels), feature_dim):
        raise ValueError(
            f"features must have a row of {feature_dim} for each of {len(labels)} labels, got {tuple(features.shape)}"
        )
    if features.device != labels.device:
        raise ValueError(f"features are on {features.device}, targets on {labels.device}: move one of them")
    if on_host(features):
        finite = finite_rows(features)
        if not finite.all():
            bad = len(features) - int(finite.sum())
            raise NonFiniteError(
                f"features must be finite, got NaN, infinity or values above {LARGEST:.0e} in {bad} of {len(features)} "
                "rows: training has diverged; statistics were not changed"
            )


LARGEST = 1e15
"""Features of a larger magnitude overflow the sums of squares in float32."""


def finite_rows(features: Tensor) -> Tensor:
    """(N,) whether all entries are finite and their squares can be summed."""
    return torch.linalg.vector_norm(features, math.inf, dim=1) < LARGEST


def describe(value: Any) -> str:
    """What came, in a few words."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    layout = "" if value.layout == torch.strided else "sparse "
    return f"a {layout}{str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)} on {value.device}"
