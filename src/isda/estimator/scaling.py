"""One factor on all logits, by the likelihood of held-out rows.

A strong augmentation finds good directions and small logits: it is afraid of samples that nobody will see. How large
logits should be is a question of its own, which one number answers.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["best_scale"]

_STEPS, _EXACT = 100, 1e-10


def best_scale(logits: Tensor, labels: Tensor, weights: Tensor) -> float:
    """The s > 0 with the largest sum_i u_i log softmax(s z_i)_y, and one further row whose class is unknown.

    The sum is concave in s. Without the further row, which has the logits of all others and every label alike, s would
    be infinite where each row is classified rightly. Logits that are no better than chance keep their size.

    Args:
        logits: (N, C).
        labels: (N,).
        weights: (N,) u, in units of rows; their sum is how many rows there are beside the further one.

    Example:
        >>> logits, labels = torch.tensor([[0.1, 0.0], [0.0, 0.1], [0.1, 0.0]]), torch.tensor([0, 1, 0])
        >>> round(best_scale(logits, labels, torch.ones(3)), 2)  # right in 3.5 cases of 4: p = 7/8, 10 log 7
        19.46
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
    return scale
