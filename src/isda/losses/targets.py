"""Targets of every kind, class indices, smoothed or mixed distributions, as one loss: F - q.z."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def is_soft(targets: Tensor) -> bool:
    """Whether targets are distributions over the classes (mixup, cutmix, distillation)."""
    return targets.is_floating_point()


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
    weight = plain.new_ones(num_classes) if class_weight is None else class_weight.to(plain.dtype)
    if is_soft(targets):
        share, valid = targets.to(plain.dtype), None
        normaliser = plain.new_tensor(float(plain.numel() // num_classes))
    else:
        valid = targets != ignore_index
        labels = torch.where(valid, targets, 0)
        share = F.one_hot(labels, num_classes).movedim(-1, 1).to(plain.dtype)
        normaliser = (weight[labels] * valid).sum()
    if label_smoothing:
        share = share * (1 - label_smoothing) + label_smoothing / num_classes
    share = share * weight.view(1, -1, *[1] * (plain.ndim - 2))
    loss = share.sum(1) * torch.logsumexp(augmented, 1) - (share * plain).sum(1)
    if valid is not None:
        loss = torch.where(valid, loss, 0)
    if reduction == "none":
        return loss
    return loss.sum() / normaliser if reduction == "mean" else loss.sum()
