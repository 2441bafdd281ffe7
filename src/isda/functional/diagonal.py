"""Quadratic forms of the classifier weights under diagonal covariances."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isda._utils.devices import in_transform
from isda.functional.grouping import chunks, frozen
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


def scaled_diagonal_margins(weight: Tensor, scatter: Tensor, scale: Tensor, pivots: Tensor | None) -> Tensor:
    """`diagonal_margins` of variances that are scatter (C, A) times scale (C,), in few kernels.

    Args:
        weight: (C, A).
        scatter: no gradient flows into it.
        scale: factors 1/n.
        pivots: (K,) the class of each output row, or None for all classes in turn.
    """
    if torch.compiler.is_compiling() or in_transform():
        pivots = torch.arange(len(weight), device=weight.device) if pivots is None else pivots
        variance = frozen(scatter.index_select(0, pivots) * scale.index_select(0, pivots).unsqueeze(1))
        return diagonal_margins(weight, variance, pivots)
    return _ScaledMargins.apply(centred(weight), scatter, scale, pivots)


class _ScaledMargins(torch.autograd.Function):
    """R[k, j] = T[k, j] - T[k, p] with T = V (W W)' - 2 (V Wp) W', where V Wp and W W are products by entry.

    dW = 2 [W (G'V) - G'(V Wp)] - 2 [row p: V (G W - g Wp)] for the gradient G of R and its row sums g.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scatter: Tensor, scale: Tensor, pivots: Tensor | None) -> Tensor:
        own = weight
        if pivots is not None:
            own, scatter, scale = (tensor.index_select(0, pivots) for tensor in (weight, scatter, scale))
        dim = weight.shape[1]
        both = weight.new_empty(len(own), 2 * dim)
        variance = torch.mul(scatter, scale.unsqueeze(1), out=both[:, :dim])
        cross = torch.mul(variance, own, out=both[:, dim:])
        ctx.save_for_backward(weight, own, both)
        ctx.pivots = pivots
        table = torch.mm(variance, weight.square().t()).addmm_(cross, weight.t(), alpha=-2)
        aimed = table.diagonal().unsqueeze(1) if pivots is None else table.gather(1, pivots.unsqueeze(1))
        # A number minus itself: the own class is exactly 0.
        return (table - aimed).clamp_min_(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        weight, own, both = ctx.saved_tensors
        dim = weight.shape[1]
        variance = both[:, :dim]
        if torch.is_grad_enabled():
            pivots = torch.arange(len(weight), device=weight.device) if ctx.pivots is None else ctx.pivots
            plain = diagonal_margins(weight, variance, pivots)
            (second,) = torch.autograd.grad(plain, weight, grad, create_graph=True)
            return second, None, None, None
        pulled = torch.addmm(both[:1], grad.t(), both, beta=0, alpha=-2)
        change = torch.addcmul(pulled[:, dim:], pulled[:, :dim], weight, value=-1)
        toward_own = torch.addcmul(grad @ weight, grad.sum(1, keepdim=True), own, value=-1)
        if ctx.pivots is None:
            change.addcmul_(variance, toward_own, value=-2)
        else:
            change.index_add_(0, ctx.pivots, toward_own.mul_(variance), alpha=-2)
        return change, None, None, None


def diagonal_gram(weight: Tensor, variance: Tensor) -> Tensor:
    """(K, C, C) tables W diag(s_k) W', through a bounded workspace."""
    row_bytes = weight.numel() * weight.element_size()
    parts = [(weight * variance[part].unsqueeze(1)) @ weight.t() for part in chunks(len(variance), row_bytes)]
    return torch.cat(parts)
