"""Fewer rows than features: the same problem in the space of the rows, exactly, with as many coordinates as rows.

A part of w_j that is orthogonal to all rows changes no logit and no margin variance under covariances of these rows (or
under the identity, which it can only raise); it only costs penalty. The optimum therefore lies in the span of the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["row_space"]


def row_space(inputs: Tensor) -> Tensor | None:
    """(N, A) orthonormal directions whose span holds all rows (N, A); None where N >= A, and nothing is gained.

    Example:
        >>> basis = row_space(torch.tensor([[3.0, 4.0, 0.0]]))
        >>> basis.abs(), row_space(torch.eye(2))
        (tensor([[0.6000, 0.8000, 0.0000]]), None)
    """
    if inputs.shape[0] >= inputs.shape[1]:
        return None
    return torch.linalg.qr(inputs.t()).Q.t().contiguous()
