"""One factor on all logits, by the likelihood of held-out rows.

A strong augmentation finds good directions and small logits: it is afraid of samples that nobody will see. How large
logits should be is a question of its own, which one number answers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Scaled", "best_scale"]

_STEPS, _EXACT = 100, 1e-10


class Scaled(NamedTuple):
    """A factor, and what it is worth."""

    scale: float
    log_likelihood: float
    """Weighted mean of log p(y | x) with it."""


def best_scale(logits: Tensor, labels: Tensor, weights: Tensor) -> Scaled:
    """The s > 0 with the largest sum_i u_i log softmax(s z_i)_y, and one further row whose class is unknown.

    The sum is concave in s. Without the further row, which has the logits of all others and every label alike, s would
    be infinite where each row is classified rightly. Logits that are no better than chance keep their size.

    Args:
        logits: (N, C).
        labels: (N,).
        weights: (N,) u, in units of rows.

    Example:
        >>> best_scale(torch.tensor([[0.1, 0.0], [0.0, 0.1], [0.1, 0.0]]), torch.tensor([0, 1, 0]), torch.ones(3))
        Scaled(scale=19.459101200589934, log_likelihood=-0.13353139262452257)
    """
    logits, weights = logits.double(), weights.double()
    logits = logits - logits.mean(1, keepdim=True)
    share = weights / weights.sum()
    own = float((share * logits.gather(1, labels.unsqueeze(1)).squeeze(1)).sum())
    known = 1 / (1 + 1 / float(weights.sum()))
    low, high, scale = 0.0, float("inf"), 1.0
    if own > 0:
        scale = 1 / float(logits.square().mean().sqrt())
    for _ in range(_STEPS if own > 0 else 0):
        probabilities = torch.softmax(scale * logits, 1)
        expected = (probabilities * logits).sum(1)
        slope = known * own - float((share * expected).sum())
        curvature = float((share * ((probabilities * logits.square()).sum(1) - expected.square())).sum())
        low, high = (scale, high) if slope > 0 else (low, scale)
        new = scale + slope / curvature if curvature > 0 else high
        if not low < new < high:
            new = (low + high) / 2 if high < float("inf") else 2 * scale
        settled, scale = abs(new - scale) <= _EXACT * scale, new
        if settled:
            break
    likely = torch.log_softmax(scale * logits, 1).gather(1, labels.unsqueeze(1)).squeeze(1)
    return Scaled(scale, float((share * likely).sum()))
