"""Second derivatives of the tilted variances, by the implicit function theorem.

The tilt t minimises F, so that F's gradient does not depend on how t moves: in a first backward pass t is a constant,
and nothing here costs time. The gradient itself does change with t. At the minimum t = s, s = softmax(c - K t) (see
isda.functional.tilt), and with S = diag(s) - s s'

    dt = (I + S K)^-1 ds,    ds: the change of s at a fixed t,

one linear system per row, for all classes. It is solved when a backward pass with ``create_graph=True``, or the pass
after it, needs it. Third derivatives are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isda.functional.grouping import UnchangedBuffers, chunks, join_chunks
from isda.functional.tables import QuadraticTables


class TiltedRows:
    """What a second derivative needs of one call: the tilt (N, C) that was found, and how to make the tables again.

    Args:
        make_tables: the quadratic forms of given classifier weights.
        tilt: (N, C).
        strength: lambda.
        unchanged: the statistics behind the forms.
    """

    def __init__(
        self,
        make_tables: Callable[[Tensor], QuadraticTables],
        tilt: Tensor,
        strength: float | Tensor,
        unchanged: UnchangedBuffers,
    ) -> None:
        self._make_tables, self.tilt, self._strength, self._unchanged = make_tables, tilt, strength, unchanged

    def tables(self, weight: Tensor) -> QuadraticTables:
        """The quadratic forms once more, with a graph of their own."""
        self._unchanged.check()
        return self._make_tables(weight)

    def moving_tilt(self, logits: Tensor, tables: QuadraticTables) -> Tensor:
        """The tilt, with the derivative that it has where it is a minimiser."""
        cross = tables.product(self.tilt)
        softmax = torch.softmax(logits + self._strength / 2 * (tables.diagonal - 2 * cross), 1)
        number = softmax.shape[1]
        identity = torch.eye(number, dtype=softmax.dtype, device=softmax.device)
        everything = torch.arange(number, device=softmax.device).expand_as(softmax)

        def solve(part: slice) -> Tensor:
            with torch.no_grad():
                here = softmax[part]
                table = self._strength * tables.restricted(everything[part], part)
                product = torch.bmm(table, here.unsqueeze(2))
                system = torch.addcmul(identity, here.unsqueeze(2), table - product.mT)
            return torch.linalg.solve(system, softmax[part].unsqueeze(2)).squeeze(2)

        table_bytes = 4 * number**2 * softmax.element_size()
        moved = join_chunks([solve(part) for part in chunks(len(softmax), table_bytes)])
        return self.tilt + (moved - moved.detach())


def with_moving_tilt(variance: Tensor, rows: TiltedRows, logits: Tensor, weight: Tensor, *trained: Tensor) -> Tensor:
    """The variances (N, C) at a constant tilt, such that their second derivatives know that the tilt moves.

    Args:
        variance: ``tables.variance(tilt)``.
        rows: the call.
        logits: (N, C).
        weight: (C, A) what the quadratic forms are made of.
        *trained: parameters of the covariance model that require gradients.
    """
    return _TiltedVariance.apply(variance, rows, logits, weight, *trained)


class _TiltedVariance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, variance: Tensor, rows: TiltedRows, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.rows, ctx.is_differentiated = rows, False
        return variance.view_as(variance)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, weight, *trained = ctx.saved_tensors
        if ctx.is_differentiated:  # on the way from the gradient of an earlier pass
            return (None, None, *_TotalDerivative.apply(grad, ctx.rows, logits, weight, *trained))
        if not torch.is_grad_enabled():
            return (grad, *(None for _ in range(3 + len(trained))))
        ctx.is_differentiated = True
        return (None, None, None, *_partial_derivatives(grad, ctx.rows, logits, weight, trained))


# Below, logits and weight become leaves, because they may depend on each other and on what is trained.


def _partial_derivatives(
    grad: Tensor, rows: TiltedRows, logits: Tensor, weight: Tensor, trained: list[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradients of <grad, variance> at a fixed tilt, which can be differentiated themselves, the tilt included."""
    wanted = weight.requires_grad
    if not wanted and not trained:
        return (None,)
    leaves = [rows.tilt.detach().requires_grad_(), weight.detach().requires_grad_()]
    variance = rows.tables(leaves[1]).variance(leaves[0])
    partial = torch.autograd.grad(variance, (leaves[1], *trained), grad, create_graph=True, materialize_grads=True)
    moving = (rows.moving_tilt(logits, rows.tables(weight)), weight)
    first, *others = _Connected.apply(leaves, *moving, *partial)
    return (first if wanted else None, *others)


class _Connected(torch.autograd.Function):
    """Functions of two leaves become functions of two other tensors, which have the same values."""

    @staticmethod
    def forward(ctx: Any, leaves: list[Tensor], tilt: Tensor, weight: Tensor, *functions: Tensor) -> tuple[Tensor, ...]:
        ctx.leaves, ctx.functions = leaves, functions
        return tuple(function.view_as(function) for function in functions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        toward = torch.autograd.grad(ctx.functions, ctx.leaves, grads, retain_graph=True, materialize_grads=True)
        return (None, *toward, *grads)


class _TotalDerivative(torch.autograd.Function):
    """The gradients of <grad, variance>, with the tilt as a function of logits, weight and what is trained."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, rows: TiltedRows, logits: Tensor, weight: Tensor, *trained: Tensor
    ) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            logits, weight = (tensor.detach().requires_grad_() for tensor in (logits, weight))
            tables = rows.tables(weight)
            variance = tables.variance(rows.moving_tilt(logits, tables))
            return torch.autograd.grad(variance, (logits, weight, *trained), grad, materialize_grads=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        raise RuntimeError("third derivatives of the tilted bound are not supported")
