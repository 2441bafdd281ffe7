"""Explicit augmentation along semantic directions, eqs. (4) and (5) and section 5, Monte-Carlo expectations, and
entropies of Gaussian features with the feature-uncertainty loss of DistributionNet (Yu et al., ICCV 2019).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from isda._utils.devices import on_host


class Estimate(NamedTuple):
    """A Monte-Carlo estimate per row and its standard error."""

    value: Tensor
    standard_error: Tensor


def symmetric_root(matrix: Tensor) -> Tensor:
    """S with S S = matrix for a symmetric positive semi-definite matrix of any rank."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT


def covariance_root(matrix: Tensor) -> Tensor:
    """Lower triangular L with L L' = (1 - d) Sigma + d diag(Sigma) for covariances (..., A, A) of any rank.

    Cholesky on correlations, whose shrinkage d makes them positive definite: variances stay as they are, and a zero
    variance or matrix stays zero. d is 2 A eps (1.5e-4 in float32 at A = 640). Where that is not enough it is
    A (A + 1) eps, twice the bound below which rounding can make Cholesky fail (Higham, 2002, theorem 10.7), and where a
    matrix has larger negative eigenvalues 1. Several times faster than `symmetric_root`, and no accelerator waits for
    it.

    Example:
        >>> covariance_root(torch.tensor([[4.0, 0.0], [0.0, 0.0]]))
        tensor([[2., 0.],
                [0., 0.]])
    """
    size, eps = matrix.shape[-1], torch.finfo(matrix.dtype).eps
    deviations = matrix.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    inverse = torch.where(deviations > 0, 1 / deviations, 0.0)
    correlation = (matrix * inverse.unsqueeze(-1)).mul_(inverse.unsqueeze(-2))
    root, failed = _shrunk_cholesky(correlation, min(1.0, 2 * size * eps))
    # On an accelerator always: to look at the outcome would make the host wait.
    if not on_host(matrix) or bool(failed.any()):
        safe, still_failed = _shrunk_cholesky(correlation, min(1.0, size * (size + 1) * eps))
        uncorrelated = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
        safe = torch.where(still_failed[..., None, None] > 0, uncorrelated, safe)
        root = torch.where(failed[..., None, None] > 0, safe, root)
    return root.mul_(deviations.unsqueeze(-1))


def _shrunk_cholesky(correlation: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Lower triangular roots of (1 - shrinkage) R + shrinkage I, and for each a number above 0 if there is none."""
    shrunk = correlation * (1 - shrinkage)
    shrunk.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    factors = torch.linalg.cholesky_ex(shrunk)
    return factors.L, factors.info


def explicit_logits(logits: Tensor, directions: Tensor, weight: Tensor, strength: float | Tensor = 1.0) -> Tensor:
    """Logits of explicitly augmented features, W (a + sqrt(strength) d) + b = z + sqrt(strength) W d.

    Args:
        logits: (N, C), z = W a + b.
        directions: (N, M, A) draws from N(0, Sigma_y).
        weight: (C, A).
        strength: lambda.

    Returns:
        (N, M, C).

    Example:
        >>> explicit_logits(torch.zeros(1, 2), torch.ones(1, 1, 3), torch.ones(2, 3), strength=4.0)
        tensor([[[6., 6.]]])
    """
    return logits.unsqueeze(1) + strength**0.5 * (directions @ weight.t())


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

    and -sum_k q_ik log softmax(W a_i^m + b)[k] for targets that are distributions q_i.

    Args:
        features: (N, A).
        targets: (N,) class indices or (N, C) distributions.
        directions: (N, M, A) draws from N(0, Sigma_y), for example from ``covariance.sample(targets, M)``.
        weight: (C, A).
        bias: (C,) or None.
        strength: lambda.

    Example:
        >>> features, directions, weight = torch.zeros(2, 3), torch.randn(2, 5, 3), torch.zeros(4, 3)
        >>> explicit_loss(features, torch.tensor([0, 3]), directions, weight)  # log 4
        tensor(1.3863)
    """
    logits = explicit_logits(F.linear(features, weight, bias), directions, weight, strength)
    return F.cross_entropy(logits.flatten(0, 1), targets.repeat_interleave(directions.shape[1], 0))


def explicit_consistency(logits: Tensor, directions: Tensor, weight: Tensor, strength: float | Tensor = 1.0) -> Tensor:
    """(N,) consistency of unlabelled samples over M explicitly augmented features, section 5.

    1/M sum_m -sum_k p_ik log p~_ik^m with p = softmax(z), held constant, and p~^m = softmax(W a_i^m + b): eq. (14) with
    a mean over draws in place of the expectation. The mean KL divergence of section 5 is this minus the entropy of p,
    a constant: its gradients are the same.

    Args:
        logits: (N, C), z = W a + b.
        directions: (N, M, A) draws from N(0, Sigma) of the pseudo label, arg max p.
        weight: (C, A).
        strength: lambda.

    Example:
        >>> explicit_consistency(torch.zeros(1, 2), torch.randn(1, 5, 3), torch.zeros(2, 3))  # the entropy log 2
        tensor([0.6931])
    """
    prediction = torch.softmax(logits.detach(), 1).unsqueeze(1)
    augmented = explicit_logits(logits, directions, weight, strength)
    return -(prediction * torch.log_softmax(augmented, 2)).sum(2).mean(1)


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


def gaussian_entropy(factor: Tensor) -> Tensor:
    """Entropy of N(., D D') within the span of D: r/2 (1 + log 2 pi) + 1/2 log det D'D.

    Args:
        factor: (..., A, r) with r <= A; for r = A this is the ordinary entropy of a Gaussian.

    Returns:
        (...,).
    """
    rank = factor.shape[-1]
    log_det = torch.linalg.slogdet(factor.mT @ factor).logabsdet
    return 0.5 * (rank * (1 + math.log(2 * math.pi)) + log_det)


def diagonal_gaussian_entropy(log_variance: Tensor) -> Tensor:
    """Entropy of N(., diag(exp(log_variance))) for rows (..., A) of log-variances."""
    return 0.5 * (log_variance + 1 + math.log(2 * math.pi)).sum(-1)


def feature_uncertainty_loss(entropy: Tensor, margin: float | Tensor) -> Tensor:
    """max(0, margin - mean entropy): no pull while the Gaussians are wide enough on average.

    Args:
        entropy: (K,) entropies of the Gaussians of a batch (per sample or per class).
        margin: the entropy to keep, gamma in the publication.

    Example:
        >>> feature_uncertainty_loss(torch.tensor([1.0, 3.0]), margin=5.0)
        tensor(3.)
    """
    return (margin - entropy.mean()).clamp_min(0)
