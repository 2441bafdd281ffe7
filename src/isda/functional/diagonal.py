"""Quadratic forms of the classifier weights under diagonal covariances."""

from __future__ import annotations

import torch
from torch import Tensor

from isda.functional.grouping import chunks
from isda.functional.quadratic import centred, margin_from_forms


def diagonal_variances(weight: Tensor, variance: Tensor) -> Tensor:
    """(K, C) table sum_a s_ka w_ja^2 for rows of variances s (K, A)."""
    return variance @ weight.square().t()


def diagonal_margins(weight: Tensor, variance: Tensor, pivots: Tensor) -> Tensor:
    """(K, C) margin variances s.w_j^2 - 2 (s * w_p).w_j + s.w_p^2, with W centred over classes: it cancels.

    Args:
        weight: (C, A).
        variance: (K, A) one row of variances s_k per output row.
        pivots: (K,) the class p(k) of each output row.
    """
    weight = centred(weight)
    cross = (variance * weight[pivots]) @ weight.t()
    return margin_from_forms(diagonal_variances(weight, variance), cross, pivots)


def diagonal_gram(weight: Tensor, variance: Tensor) -> Tensor:
    """(K, C, C) tables W diag(s_k) W', through a bounded workspace."""
    row_bytes = weight.numel() * weight.element_size()
    parts = [(weight * variance[part].unsqueeze(1)) @ weight.t() for part in chunks(len(variance), row_bytes)]
    return torch.cat(parts)
