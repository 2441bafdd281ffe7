"""The expected loss of augmented features by Monte-Carlo, and the two bounds of it, sample by sample in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isda.covariance import CovarianceModel
from isda.functional.bounds import jensen_bound, margin_from_gram, tilted_bound
from isda.functional.sampling import monte_carlo, symmetric_root

__all__ = ["Bounds", "Ratio", "measure_bounds"]

ENTRIES = 2**23
"""Logits that are drawn at once."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of means and its standard error."""

    value: float
    standard_error: float


@dataclass(frozen=True)
class Bounds:
    """What features in all their augmented forms cost on average, and what the bounds say; (N,) each, in nats."""

    strength: float
    expected: Tensor
    """E[-log softmax(W a~ + b)_y] over a~ ~ N(a, lambda Sigma_y), estimated."""
    standard_errors: Tensor
    """Of the estimates."""
    published: Tensor
    """Prop. 1."""
    tilted: Tensor

    @property
    def standard_error(self) -> float:
        """Of the mean of ``expected``, by the draws alone: the samples are what they are."""
        return float(self.standard_errors.square().sum().sqrt()) / len(self.expected)

    @property
    def ratio(self) -> Ratio | None:
        """Mean gap of the tilted bound over that of the published one; None where there is no gap.

        r = sum_i t_i / sum_i p_i for the gaps t_i and p_i of sample i; the standard error is that of a ratio estimate
        over samples, sqrt(sum_i (t_i - r p_i)^2 / (N (N - 1))) / mean p, which has the noise of the draws in it.
        """
        tilted, published = self.tilted - self.expected, self.published - self.expected
        mean = float(published.mean())
        if self.strength == 0 or not mean > 0 or len(tilted) < 2:
            return None
        value = float(tilted.mean()) / mean
        residual = tilted - value * published
        error = float(residual.square().sum().sqrt()) / math.sqrt(len(tilted) * (len(tilted) - 1)) / mean
        return Ratio(value, error)


@torch.no_grad()
def measure_bounds(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor,
    covariance: CovarianceModel,
    strength: float,
    draws: int = 1000,
    seed: int = 0,
) -> Bounds:
    """The expected loss and its bounds for rows of logits.

    Draws are made where they matter: W (a~ - a) is Gaussian with covariance lambda W Sigma_y W', which is C x C.

    Args:
        logits: (N, C) of the features before augmentation, float64.
        targets: (N,) classes.
        weight: (C, A) of the classifier, float64.
        covariance: of the features of each class, float64.
        strength: lambda.
        draws: per sample, an even number: each comes with its opposite.
        seed: of the draws.
    """
    if draws < 4 or draws % 2:
        raise ValueError(f"draws must be an even number of at least 4, got {draws}")
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength must be a finite number >= 0, got {strength}")
    chance = torch.Generator().manual_seed(seed)
    classes, count = logits.shape[1], len(logits)
    identity = torch.eye(classes, dtype=logits.dtype)
    expected, errors, published = (torch.empty(count, dtype=logits.dtype) for _ in range(3))
    at_once = max(1, ENTRIES // (draws * classes))
    for label in targets.unique().tolist():
        gram = weight @ covariance.covariance(label).to(weight) @ weight.T
        root, margins = symmetric_root(gram), margin_from_gram(gram)[label]
        for rows in (targets == label).nonzero().flatten().split(at_once):
            noise = torch.randn(len(rows), draws // 2, classes, generator=chance, dtype=logits.dtype)
            estimate = monte_carlo(logits[rows], targets[rows], noise @ root, identity, strength)
            expected[rows], errors[rows] = estimate
            published[rows] = jensen_bound(logits[rows], targets[rows], margins.expand(len(rows), -1), strength)
    tilted = tilted_bound(logits, targets, weight, covariance, strength) if strength else published
    return Bounds(strength, expected, errors, published, tilted)
