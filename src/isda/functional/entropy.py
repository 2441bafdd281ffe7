"""The feature-uncertainty loss of DistributionNet (Yu et al., ICCV 2019), which keeps a learned covariance alive.

The cross-entropy alone would shrink a learned covariance to zero; the loss asks the entropy of the Gaussians to stay
above a margin.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["diagonal_gaussian_entropy", "feature_uncertainty_loss", "gaussian_entropy"]


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
