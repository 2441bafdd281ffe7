"""What the rival losses share: checked rows, a cross-entropy for each sample, and torch's reductions.

The cross-entropy of each sample can be ISDA's bound of it: that is how a rival is used on top of ISDA.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda import checks
from isda.choices import check_choice
from isda.devices import on_host

__all__ = ["REDUCTIONS", "SampleLoss", "check_features", "check_number", "check_rows", "own", "reduced", "wide"]

REDUCTIONS = ("mean", "sum", "none")


def check_rows(logits: Tensor, targets: Tensor) -> None:
    """Logits (N, C) of at least one sample and class indices (N,); their range is looked at on the CPU only."""
    if logits.ndim != 2 or logits.numel() == 0:
        raise ValueError(f"logits must have shape (N, C) with at least one sample, got {checks.shape_of(logits)}")
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating point, got {logits.dtype}")
    checks.check_labels_dtype(targets)
    if targets.shape != logits.shape[:1]:
        raise ValueError(f"targets must have shape ({len(logits)},) to match logits, got {checks.shape_of(targets)}")
    message = checks.label_error(targets, logits.shape[1]) if on_host(targets) else None
    if message is not None:
        raise ValueError(message)


def check_features(logits: Tensor, features: Tensor, weight: Tensor | None = None, dim: int | None = None) -> None:
    """Features (N, A) that belong to logits (N, C), and the weight (C, A) that makes the one from the other."""
    dim = features.shape[-1] if dim is None else dim
    if features.ndim != 2 or features.shape != (len(logits), dim):
        raise ValueError(f"features must have shape ({len(logits)}, {dim}), got {checks.shape_of(features)}")
    if not features.is_floating_point():
        raise ValueError(f"features must be floating point, got {features.dtype}")
    if weight is not None and weight.shape != (logits.shape[1], dim):
        raise ValueError(f"weight must have shape ({logits.shape[1]}, {dim}), got {checks.shape_of(weight)}")


def check_number(name: str, value: float, low: float = 0.0, high: float = math.inf) -> float:
    """A finite number from ``low`` to ``high``, or a ValueError that names it."""
    if not (low <= value <= high and math.isfinite(value)):
        span = f"a finite number >= {low:g}" if high == math.inf else f"a number in {low:g}..{high:g}"
        raise ValueError(f"{name} must be {span}, got {value!r}")
    return float(value)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in at least float32, whatever the autocast dtype."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def own(logits: Tensor, targets: Tensor) -> Tensor:
    """(N,) the logit of each sample's label."""
    return logits.gather(1, targets.long().unsqueeze(1)).squeeze(1)


def reduced(rows: Tensor, reduction: str) -> Tensor:
    """Losses (N,) reduced the way torch's criteria are: mean, sum or none."""
    if reduction == "none":
        return rows
    return rows.mean() if reduction == "mean" else rows.sum()


class SampleLoss(nn.Module):
    """A loss that is made from the cross-entropy -log p_y of each sample.

    Args:
        reduction: mean, sum or none.
        cross_entropy: what gives (N,) cross-entropies of logits (N, C) and labels (N,); plain by default. Give
            ``ISDALoss.attach(model, ..., reduction="none")`` for ISDA's upper bound of their expectation.
        linear: whether the loss adds to the cross-entropies. One that bends them cannot take a penalty for one.
    """

    def __init__(self, *, reduction: str = "mean", cross_entropy: nn.Module | None = None, linear: bool = True) -> None:
        super().__init__()
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        if cross_entropy is not None:
            _check_base(cross_entropy, linear=linear)
        self.cross_entropy = cross_entropy

    def rows(self, logits: Tensor, targets: Tensor) -> Tensor:
        """(N,) cross-entropies, in at least float32."""
        if self.cross_entropy is None:
            return F.cross_entropy(wide(logits), targets.long(), reduction="none")
        return wide(self.cross_entropy(logits, targets))


def _check_base(criterion: Any, *, linear: bool) -> None:
    """Refuse a criterion that gives something else than one cross-entropy per sample."""
    expected = {"reduction": "none", "label_smoothing": 0.0, "class_weight": None, "weight": None}
    for name, value in expected.items():
        if getattr(criterion, name, value) != value:
            raise ValueError(
                f"cross_entropy must have {name}={value!r} to be one cross-entropy for each sample, got "
                f"{name}={getattr(criterion, name)!r}"
            )
    if linear or not hasattr(criterion, "covariance"):
        return
    with torch.no_grad():
        penalty = criterion.covariance.penalty()
    if penalty is not None:
        raise ValueError("cross_entropy must add no uncertainty loss here: uncertainty_weight must be 0")
