"""How much of an estimated covariance to give up for a simpler one: intensities of Ledoit and Wolf (2004).

(1 - r) S + r T has the least expected squared error for r = E|S - Sigma|^2 / E|S - T|^2. For Gaussian features
E|S - Sigma|^2 = (tr Sigma^2 + tr(Sigma)^2) / m at m degrees of freedom, so that counts, traces and norms of the scatter
are all it needs: nothing beyond the statistics that are kept anyway, which merge and decay exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["shrinkage_to_diagonal", "shrinkage_to_target"]


def shrinkage_to_target(freedom: Tensor, trace: Tensor, square: Tensor, distance: Tensor) -> Tensor:
    """R = (tr S^2 + tr(S)^2) / (m |S - T|^2), at most 1; 1 for a matrix that is not known at all.

    Args:
        freedom: m, the degrees of freedom of S: the number of its features less one; any shape.
        trace: tr S.
        square: tr S^2 = |S|^2, in Frobenius's norm.
        distance: |S - T|^2.

    Example:
        >>> few, many = torch.tensor([3.0, 300.0])
        >>> for m in (few, many):
        ...     print(round(float(shrinkage_to_target(m, torch.tensor(2.0), torch.tensor(2.0), torch.tensor(1.0))), 3))
        1.0
        0.02
    """
    return _ratio(square + trace.square(), freedom, distance)


def shrinkage_to_diagonal(freedom: Tensor, trace: Tensor, square: Tensor, diagonal_square: Tensor) -> Tensor:
    """R = sum_{i != j} (s_ii s_jj + s_ij^2) / (m sum_{i != j} s_ij^2), at most 1: how far correlations are noise.

    Args:
        freedom: m, the degrees of freedom of S; any shape.
        trace: tr S.
        square: |S|^2, in Frobenius's norm.
        diagonal_square: sum_i s_ii^2.
    """
    apart = (square - diagonal_square).clamp_min(0)
    return _ratio((trace.square() - diagonal_square).clamp_min(0) + apart, freedom, apart)


def _ratio(error: Tensor, freedom: Tensor, distance: Tensor) -> Tensor:
    known = (freedom > 0) & (distance > 0)
    below = torch.where(known, freedom * distance, torch.ones_like(distance))
    return torch.where(known, error / below, torch.ones_like(distance)).clamp(0, 1)
