"""Targets of every kind, class indices, smoothed or mixed distributions, as one loss: F - q.z."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isda.devices import READ_EVERY, on_host
from isda.losses.warning import warn

__all__ = ["SharesMonitor", "bound_loss", "is_soft"]

_TOLERANCE = 0.05
"""How far a distribution, rounded to whatever precision it was kept in, may be from a sum of 1."""


def is_soft(targets: Tensor) -> bool:
    """Whether targets are distributions over the classes (mixup, cutmix, distillation)."""
    return targets.is_floating_point()


class SharesMonitor:
    """Refuses soft targets that are not finite, and warns, once, of rows that do not sum to 1.

    On the CPU in every call; elsewhere the sums are looked at in the first and in every hundredth call.
    """

    def __init__(self) -> None:
        self._calls, self._warned = 0, False

    def check(self, targets: Tensor) -> None:
        """Look at targets (N, C, ...)."""
        self._calls += 1
        here = on_host(targets)
        if not here and (self._warned or self._calls % READ_EVERY != 1):
            return
        sums = targets.detach().sum(1, dtype=torch.promote_types(targets.dtype, torch.float32))
        low, high = torch.stack(sums.aminmax()).tolist()
        if here and not (math.isfinite(low) and math.isfinite(high)):
            bad = int(sums.isfinite().logical_not().sum())
            raise ValueError(
                f"targets given as distributions must be finite, got NaN or infinity in {bad} of {sums.numel()} rows; "
                "statistics were not changed"
            )
        if not self._warned and max(1 - low, high - 1) > _TOLERANCE:
            self._warned = True
            warn(
                "targets in floating point are taken for distributions over the classes, but the sums of their rows "
                f"lie in {low:.3g}..{high:.3g} instead of at 1; cross-entropy is not meant for several labels per "
                "sample (multi-hot): that is ISDABCELoss"
            )


def bound_loss(
    augmented: Tensor,
    plain: Tensor,
    targets: Tensor,
    *,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    """sum_c q_c w_c (logsumexp(augmented) - plain_c), reduced the way nn.CrossEntropyLoss reduces.

    Args:
        augmented: (N, C, ...) logits whose logsumexp is F.
        plain: (N, C, ...) logits before augmentation.
        targets: (N, ...) class indices or (N, C, ...) distributions q.
        class_weight: (C,) weights w of the classes, or None.
        ignore_index: label that does not count.
        reduction: mean, sum or none; the mean of class indices is weighted by w_y, as in nn.CrossEntropyLoss.
        label_smoothing: share of q that is spread over all classes.
    """
    num_classes = plain.shape[1]
    if class_weight is None and not label_smoothing and not is_soft(targets):
        return _plain_loss(augmented, plain, targets, ignore_index, reduction)
    weight = plain.new_ones(num_classes) if class_weight is None else class_weight.to(plain.dtype)
    total = torch.logsumexp(augmented, 1)
    if is_soft(targets):
        share = targets.to(plain.dtype) * (1 - label_smoothing) + label_smoothing / num_classes
        share = share * weight.view(1, -1, *[1] * (plain.ndim - 2))
        loss = share.sum(1) * total - (share * plain).sum(1)
        normaliser: Tensor | int = loss.numel()
    else:
        # Class by class only where smoothing asks for it: at label resolution a (N, C, H, W) tensor is a large one.
        valid = targets != ignore_index
        labels = torch.where(valid, targets, 0)
        own = weight[labels]
        loss = (1 - label_smoothing) * own * (total - plain.gather(1, labels.unsqueeze(1)).squeeze(1))
        if label_smoothing:
            spread = weight.sum() * total - torch.tensordot(plain, weight, dims=([1], [0]))
            loss = loss + label_smoothing / num_classes * spread
        loss = torch.where(valid, loss, 0)
        normaliser = (own * valid).sum()
    if reduction == "none":
        return loss
    return loss.sum() / normaliser if reduction == "mean" else loss.sum()


def _plain_loss(augmented: Tensor, plain: Tensor, targets: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """The everyday case, labels that all weigh the same, in few kernels."""
    ignored = targets == ignore_index
    own = plain.gather(1, targets.masked_fill(ignored, 0).unsqueeze(1)).squeeze(1)
    loss = (torch.logsumexp(augmented, 1) - own).masked_fill(ignored, 0)
    if reduction == "none":
        return loss
    return loss.sum() / (ignored.numel() - ignored.sum()) if reduction == "mean" else loss.sum()
