"""How far the student's prediction is from a target distribution, one number per sample.

The target is detached here, whatever the caller did, and the student's logits never are: a consistency term can
neither train its target nor lose its gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isda.checks import shape_of

__all__ = ["DISTANCES", "entropy", "kl_divergence", "mean_squared_error"]


def mean_squared_error(logits: Tensor, target: Tensor) -> Tensor:
    """(N,) 1/C sum_c (softmax(logits)_c - target_c)^2.

    The mean over classes, not their sum. Laine & Aila's 1 / (C |B|) and the sum / num_classes of the mean teacher's
    authors are this number; a weight tuned for the sum over classes has to be multiplied by C.

    Args:
        logits: (N, C) of the student.
        target: (N, C) probabilities; gets no gradient.
    """
    return (torch.softmax(logits, 1) - _constant(logits, target)).square().mean(1)


def kl_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """(N,) KL(target || softmax(logits)) = sum_c target_c (log target_c - log softmax(logits)_c).

    Args:
        logits: (N, C) of the student.
        target: (N, C) probabilities; gets no gradient.
    """
    target = _constant(logits, target)
    return (torch.xlogy(target, target) - target * torch.log_softmax(logits, 1)).sum(1)


def entropy(logits: Tensor) -> Tensor:
    """(N,) entropy of the prediction, -sum_c p_c log p_c, with gradient."""
    return -(torch.softmax(logits, 1) * torch.log_softmax(logits, 1)).sum(1)


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"mse": mean_squared_error, "kl": kl_divergence}


def _constant(logits: Tensor, target: Tensor) -> Tensor:
    if logits.ndim != 2 or target.shape != logits.shape:
        raise ValueError(f"logits and target must both be (N, C), got {shape_of(logits)} and {shape_of(target)}")
    return target.detach()
