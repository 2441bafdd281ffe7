"""Explicit augmentation: drawing features along semantic directions, eqs. (4) and (5), and Monte-Carlo expectations."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Estimate", "explicit_loss", "monte_carlo", "symmetric_root"]


class Estimate(NamedTuple):
    """A Monte-Carlo estimate per row and its standard error."""

    value: Tensor
    standard_error: Tensor


def symmetric_root(matrix: Tensor) -> Tensor:
    """S with S S = matrix for a symmetric positive semi-definite matrix of any rank."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT


def explicit_loss(
    features: Tensor,
    targets: Tensor,
    directions: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    strength: float | Tensor = 1.0,
) -> Tensor:
    """Cross-entropy over M explicitly augmented features per sample, eq. (5); the paper's naive method.

    L_M = 1/N sum_i 1/M sum_m -log softmax(W a_i^m + b)[y_i],   a_i^m = a_i + sqrt(strength) * direction_im

    Args:
        features: (N, A).
        targets: (N,) class indices.
        directions: (N, M, A) draws from N(0, Sigma_y), for example from ``covariance.sample(targets, M)``.
        weight: (C, A).
        bias: (C,) or None.
        strength: lambda.
    """
    augmented = features.unsqueeze(1) + strength**0.5 * directions
    logits = F.linear(augmented, weight, bias)
    return F.cross_entropy(logits.flatten(0, 1), targets.repeat_interleave(directions.shape[1]))


@torch.no_grad()
def monte_carlo(logits: Tensor, targets: Tensor, directions: Tensor, weight: Tensor, strength: float) -> Estimate:
    """The expected cross-entropy over augmented features, eqs. (6) and (14), estimated from draws.

    E[-q.z~ + logsumexp(z~)] with z~ = z + sqrt(strength) * W direction; q is one-hot(targets), or the rows of
    ``targets`` when they are distributions (the prediction p, for the consistency loss). Antithetic pairs
    (direction, -direction) cancel the linear part, so that the estimate is far more precise than plain draws.

    Args:
        logits: (N, C) of the features before augmentation.
        targets: (N,) class indices or (N, C) distributions.
        directions: (N, M, A) draws from N(0, Sigma_y).
        weight: (C, A).
        strength: lambda.

    Returns:
        (N,) estimates and (N,) standard errors over the M pairs.
    """
    shift = math.sqrt(strength) * (directions @ weight.t())
    base = logits.unsqueeze(1)
    pairs = (torch.logsumexp(base + shift, -1) + torch.logsumexp(base - shift, -1)) / 2
    aimed = logits.gather(1, targets.unsqueeze(1)).squeeze(1) if targets.ndim == 1 else (targets * logits).sum(1)
    value = pairs.mean(1) - aimed
    return Estimate(value, pairs.std(1) / math.sqrt(directions.shape[1]))
