"""Operators of torch.library for what a compiled graph cannot hold as plain code: loops over chunks, values read.

`torch.compile` sees one node with the shape of its result and a gradient; inside runs what runs without it. Gradients
compute their products once more. Without a compiler these operators are not used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isda._utils.devices import on_host
from isda.functional.grouping import group_rows
from isda.functional.moments import add_outer_products, add_outer_products_on_device
from isda.functional.quadratic import _ClassMargins, _FullGram, _FullQuadratic
from isda.functional.sketch import append_rows


@torch.library.custom_op("isda::add_outer_products", mutates_args=("scatter",))
def scatter_outer_products(scatter: Tensor, rows: Tensor, labels: Tensor) -> None:
    """``scatter[c] += sum of z z'`` over the rows z (N, A) of class c, in place; scatter is (C, A, A)."""
    groups = group_rows(labels, len(scatter))
    if on_host(rows):
        add_outer_products(scatter, rows, groups)
    else:
        add_outer_products_on_device(scatter, rows, groups)


@torch.library.custom_op("isda::append_rows", mutates_args=("sketch", "fill"))
def sketch_rows(sketch: Tensor, fill: Tensor, rows: Tensor, labels: Tensor) -> None:
    """Append each row (N, A) to the sketch of its label; see isda.functional.sketch."""
    append_rows(sketch, fill, rows, labels)


@torch.library.custom_op("isda::frozen", mutates_args=())
def frozen_copy(value: Tensor) -> Tensor:
    """See isda.functional.grouping.frozen."""
    return value.clone()


class _Context:
    """What an autograd.Function keeps between its two passes, for calls outside of autograd."""

    saved_tensors: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors


def _gradient(function: Any, grad: Tensor, *inputs: Any) -> Tensor:
    """The gradient in the first input of an autograd.Function, from both of its passes."""
    with torch.no_grad():
        context = _Context()
        function.forward(context, *inputs)
        return function.backward(context, grad.contiguous())[0]


def _value(function: Any, *inputs: Any) -> Tensor:
    with torch.no_grad():
        return function.forward(_Context(), *inputs)


@torch.library.custom_op("isda::full_quadratic", mutates_args=())
def quadratic(weight: Tensor, matrices: Tensor, groups: Tensor, pivots: Tensor | None, scale: Tensor | None) -> Tensor:
    """`isda.functional.quadratic.full_quadratic`, (K, C)."""
    return _value(_FullQuadratic, weight, matrices, groups, pivots, scale)


@torch.library.custom_op("isda::full_quadratic_backward", mutates_args=())
def quadratic_backward(
    grad: Tensor, weight: Tensor, matrices: Tensor, groups: Tensor, pivots: Tensor | None, scale: Tensor | None
) -> Tensor:
    """The gradient in the weight."""
    return _gradient(_FullQuadratic, grad, weight, matrices, groups, pivots, scale)


@torch.library.custom_op("isda::full_gram", mutates_args=())
def gram(weight: Tensor, matrices: Tensor, groups: Tensor) -> Tensor:
    """`isda.functional.quadratic.full_gram` without a scale, (K, C, C)."""
    return _value(_FullGram, weight, matrices, groups)


@torch.library.custom_op("isda::full_gram_backward", mutates_args=())
def gram_backward(grad: Tensor, weight: Tensor, matrices: Tensor, groups: Tensor) -> Tensor:
    """The gradient in the weight."""
    return _gradient(_FullGram, grad, weight, matrices, groups)


@torch.library.custom_op("isda::class_margins", mutates_args=())
def margins(weight: Tensor, matrices: Tensor, scale: Tensor) -> Tensor:
    """`isda.functional.quadratic.class_margins`, (C, C)."""
    return _value(_ClassMargins, weight, matrices, scale)


@torch.library.custom_op("isda::class_margins_backward", mutates_args=())
def margins_backward(grad: Tensor, weight: Tensor, matrices: Tensor, scale: Tensor) -> Tensor:
    """The gradient in the weight."""
    return _gradient(_ClassMargins, grad, weight, matrices, scale)


def _register() -> None:
    """Shapes of the results, and gradients in the weight."""
    for operator in (scatter_outer_products, sketch_rows):
        operator.register_fake(lambda *_: None)
    frozen_copy.register_fake(torch.empty_like)
    quadratic.register_fake(lambda weight, matrices, groups, *_: weight.new_empty(len(groups), len(weight)))
    gram.register_fake(lambda weight, _, groups: weight.new_empty(len(groups), len(weight), len(weight)))
    margins.register_fake(lambda weight, *_: weight.new_empty(len(weight), len(weight)))

    def connect(operator: Any, backward: Any) -> None:
        def keep(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            inputs = ctx.saved_tensors
            return (backward(grad, *inputs), *(None for _ in inputs[1:]))

        backward.register_fake(lambda _, weight, *__: torch.empty_like(weight))
        operator.register_autograd(gradients, setup_context=keep)

    connect(quadratic, quadratic_backward)
    connect(gram, gram_backward)
    connect(margins, margins_backward)


_register()
