"""Margin variances of all classes at once, for devices on which a launch costs more than an idle row.

R[k, j] = (w_j - w_k)' Sigma_k (w_j - w_k) with Sigma_k = scale_k M_k. P_k = (W - w_k) M_k is kept for the backward pass
while the workspace allows and computed again, chunk by chunk, when not. Its gradient is two products:

    dW = 2 sum_k G_k P_k - 2 [row k: G_k' P_k],    G[k, j] = scale_k dL/dR[k, j].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isda.functional.grouping import WORKSPACE_BYTES, chunks
from isda.functional.unchanged import Unchanged

__all__ = ["class_margins"]


def class_margins(weight: Tensor, matrices: Tensor, scale: Tensor) -> Tensor:
    """(C, C) margin variances of every class with its own matrix.

    Args:
        weight: (C, A).
        matrices: (C, A, A) symmetric; no gradient flows into them.
        scale: (C,) their factors.
    """
    return _ClassMargins.apply(weight, matrices, scale)


def _plain(weight: Tensor, matrices: Tensor, scale: Tensor) -> Tensor:
    difference = weight - weight.unsqueeze(1)
    return (difference @ matrices * difference).sum(-1).clamp_min(0) * scale.unsqueeze(1)


def _project(weight: Tensor, matrices: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """(k, C, A) differences W - w_k and their products P_k."""
    # Differences first: nothing cancels, and the class's own row is exactly 0 all the way.
    difference = weight - weight[part].unsqueeze(1)
    return difference, difference @ matrices[part]


class _ClassMargins(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, matrices: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.matrices, ctx.scale, ctx.unchanged = matrices, scale, Unchanged(matrices)
        row_bytes = weight.numel() * weight.element_size()
        ctx.parts = list(chunks(len(weight), 2 * row_bytes))
        keep = len(weight) * row_bytes <= WORKSPACE_BYTES
        values, ctx.kept = [], []
        for part in ctx.parts:
            difference, product = _project(weight, matrices, part)
            values.append((product * difference).sum(-1))
            ctx.kept.append(product if keep else None)
        table = values[0] if len(values) == 1 else torch.cat(values)
        return table.clamp_min_(0).mul_(scale.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            ctx.unchanged.check()
            plain = _plain(weight, ctx.matrices, ctx.scale)
            (second,) = torch.autograd.grad(plain, weight, grad, create_graph=True)
            return second, None, None
        grad = grad * ctx.scale.unsqueeze(1)
        toward_own, total = [], None
        for part, product in zip(ctx.parts, ctx.kept, strict=True):
            if product is None:
                ctx.unchanged.check()
                _, product = _project(weight, ctx.matrices, part)
            own = torch.bmm(grad[part].unsqueeze(1), product)
            # (C, 1, k) @ (C, k, A): summed over the classes k of this part.
            columns, rows = grad[part].t().unsqueeze(1), product.transpose(0, 1)
            if len(ctx.parts) == 1:
                return torch.baddbmm(own, columns, rows, beta=-2, alpha=2).squeeze(1), None, None
            toward_own.append(own)
            total = torch.bmm(columns, rows) if total is None else total.baddbmm_(columns, rows)
        if total is None:  # a table of no classes
            return torch.zeros_like(weight), None, None
        return total.sub_(torch.cat(toward_own)).mul_(2).squeeze(1), None, None
