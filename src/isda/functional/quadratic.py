"""Quadratic forms of the classifier weights under full covariance matrices, without a tensor of size N x C x A.

For a matrix Sigma_k, the rows w_j of the C x A weight matrix W and a pivot class p(k) these functions give

    variances[k, j] = w_j' Sigma_k w_j,     gram[k, i, j] = w_i' Sigma_k w_j,
    margin[k, j] = (w_j - w_p)' Sigma_k (w_j - w_p),

all from one product P_k per matrix: of W - w_p with Sigma_k for margins, of W itself for the other two. Their gradients
with respect to W need P_k again: it is kept while the workspace allows and recomputed chunk by chunk when not. When the
matrices themselves need gradients, or for second derivatives, plain differentiable expressions run instead.

`class_margins` computes the margins of all classes at once, for devices on which a kernel launch costs more than an
unused row. With R[k, j] = scale_k (w_j - w_k)' M_k (w_j - w_k) and P_k = (W - w_k) M_k its gradient is

    dW = 2 sum_k G_k P_k - 2 [row k: G_k' P_k],    G[k, j] = scale_k dL/dR[k, j].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isda._utils.devices import in_transform, on_host
from isda.functional.grouping import (
    LOOP_FROM_DIM,
    WORKSPACE_BYTES,
    Groups,
    Scratch,
    Tiles,
    UnchangedBuffers,
    chunks,
    join_chunks,
    rows_per_chunk,
)


def centred(weight: Tensor) -> Tensor:
    """W minus its mean row: leaves every difference w_j - w_k alone and keeps their squares from cancelling.

    The mean is a constant for autograd, because nothing computed from differences depends on it.
    """
    return weight - weight.detach().mean(dim=0)


def margin_variance(weight: Tensor, covariance: Tensor, classes: Tensor) -> Tensor:
    """R[k, j] = (w_j - w_y)' Sigma_y (w_j - w_y) for y = classes[k], from a tensor of covariances.

    Differentiable in the weights, and twice in the covariances when they require gradients (learned or meta-learned
    ones).

    Args:
        weight: (C, A).
        covariance: (C, A, A) one matrix per class, or (1, A, A) one for all.
        classes: (K,) class indices.

    Returns:
        (K, C); the own class is exactly 0 and nothing is negative.

    Example:
        >>> weight = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
        >>> margin_variance(weight, torch.eye(2).expand(2, 2, 2), torch.tensor([0]))
        tensor([[0., 5.]])
    """
    groups = classes if len(covariance) > 1 else torch.zeros_like(classes)
    return full_quadratic(weight, covariance, groups, classes)


def margin_from_forms(diagonal: Tensor, cross: Tensor, classes: Tensor) -> Tensor:
    """R = diagonal - 2 cross + cross[own class], with the own class exactly 0 and rounding below 0 cut off."""
    own = classes.unsqueeze(1)
    variance = (diagonal - 2 * cross + cross.gather(1, own)).clamp_min(0)
    return variance.scatter(1, own, 0.0)


def common_margins(weight: Tensor, matrix: Tensor, pivots: Tensor) -> Tensor:
    """(K, C) margin variances under one matrix (A, A) for all rows, from one product W Sigma."""
    weight = centred(weight)
    projected = weight @ matrix
    variances = (projected * weight).sum(-1).expand(len(pivots), -1)
    return margin_from_forms(variances, projected[pivots] @ weight.t(), pivots)


def full_quadratic(
    weight: Tensor, matrices: Tensor, groups: Tensor, pivots: Tensor | None = None, scale: Tensor | None = None
) -> Tensor:
    """(K, C) ``margin`` of the module docstring for given pivots, ``variances`` without.

    Args:
        weight: (C, A).
        matrices: (G, A, A) symmetric.
        groups: (K,) which matrix each output row uses.
        pivots: (K,) the class p(k) of each output row, or None.
        scale: (K,) factor of each output row (the statistics are kept unnormalised), or None.
    """
    compiling = torch.compiler.is_compiling()
    if matrices.requires_grad or (not compiling and in_transform()):
        values = _plain_quadratic(weight, matrices, groups, pivots)
        return values if scale is None else values * scale.unsqueeze(1)
    if compiling:
        return torch.ops.isda.full_quadratic(weight, matrices, groups, pivots, scale)
    return _FullQuadratic.apply(weight, matrices, groups, pivots, scale)


class ProjectedWeights(NamedTuple):
    """P_k = W M_k of a few matrices Sigma_k = scale_k M_k, and the variances that follow from it."""

    products: Tensor
    """(K, C, A) P, a constant."""
    scale: Tensor
    """(K,)."""
    variances: Tensor
    """(K, C) w_j' Sigma_k w_j, differentiable in W."""
    memory: object
    """What the products live in."""


def projected_weights(weight: Tensor, matrices: Tensor, groups: Tensor, scale: Tensor) -> ProjectedWeights | None:
    """W Sigma_k for the matrices (G, A, A) of ``groups`` (K,); None if they do not fit the workspace."""
    projected = _Projected(weight.detach(), matrices, groups)
    if not projected.fits:
        return None
    variances = _FullQuadratic.apply(weight, matrices, groups, None, scale, projected)
    return ProjectedWeights(projected.products, scale, variances, projected)


def known_projection(weight: Tensor, products: Tensor) -> ProjectedWeights:
    """The same of products W Sigma_k (K, C, A) that were computed from constant covariances."""
    return ProjectedWeights(products, products.new_ones(len(products)), _KnownVariances.apply(weight, products), None)


class _KnownVariances(torch.autograd.Function):
    """v[k, j] = w_j' p_kj for p_kj = Sigma_k w_j: dW = 2 sum_k G[k, j] p_kj."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, products: Tensor) -> Tensor:
        ctx.products = products
        return (products.transpose(0, 1) @ weight.unsqueeze(2)).squeeze(2).t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return 2 * (grad.t().unsqueeze(1) @ ctx.products.transpose(0, 1)).squeeze(1), None


def full_gram(weight: Tensor, matrices: Tensor, groups: Tensor, scale: Tensor | None = None) -> Tensor:
    """(K, C, C) tables W Sigma_k W', differentiable in W (and in the matrices if they require it)."""
    compiling = torch.compiler.is_compiling()
    if matrices.requires_grad or (not compiling and in_transform()):
        gram = weight @ matrices[groups] @ weight.t()
    elif compiling:
        gram = torch.ops.isda.full_gram(weight, matrices, groups)
    else:
        gram = _FullGram.apply(weight, matrices, groups)
    return gram if scale is None else gram * scale.view(-1, 1, 1)


def self_adjoint(operator: Callable[[Tensor], Tensor], vectors: Tensor, *reads: Tensor) -> Tensor:
    """Apply a symmetric linear operator to the rows of ``vectors``; its gradient is the operator again.

    ``reads`` are the buffers that the operator depends on; they must not change before the backward pass.
    """
    if torch.compiler.is_compiling() or in_transform():  # they differentiate the operator itself
        return operator(vectors)
    return _SelfAdjoint.apply(vectors, operator, UnchangedBuffers(*reads))


def full_transform(vectors: Tensor, matrices: Tensor, groups: Groups) -> Tensor:
    """(N, A) rows Sigma_{g(i)} v_i, one GEMM per matrix that occurs; ``groups.classes`` index ``matrices``."""
    if not on_host(vectors):
        return _product_without_waiting(vectors, matrices, groups.labels, complete=groups.complete)
    parts = vectors[groups.order].split(groups.sizes)
    products = [part @ matrices[index] for index, part in zip(groups.classes.tolist(), parts, strict=True)]
    return torch.cat(products)[groups.inverse_order]


def product_by_group(rows: Tensor, matrices: Tensor, groups: Groups) -> Tensor:
    """(N, E) rows (N, D) times the matrix of their group; ``matrices`` (K, D, E) are in the order of the groups."""
    if len(matrices) == 1:
        return rows @ matrices[0]
    if groups.one_slot_per_row:
        return (rows.unsqueeze(1) @ matrices).squeeze(1)
    if not on_host(rows):
        return _product_without_waiting(rows, matrices, groups.slot, complete=True)
    place, longest = groups.padded
    if len(matrices) * longest <= 4 * (len(rows) + len(matrices)):
        # Groups about as large as each other: one batched product of blocks padded to the same length.
        blocks = rows.new_zeros(len(matrices) * longest, rows.shape[1]).index_copy(0, place, rows)
        return (blocks.view(len(matrices), longest, -1) @ matrices).flatten(0, 1).index_select(0, place)
    parts = rows.index_select(0, groups.order).split(groups.sizes)
    products = [part @ matrix for part, matrix in zip(parts, matrices.unbind(0), strict=True)]
    return torch.cat(products).index_select(0, groups.inverse_order)


def _product_without_waiting(rows: Tensor, matrices: Tensor, index: Tensor, *, complete: bool) -> Tensor:
    """(N, E) rows times ``matrices[index]``; all rows with every matrix while that is little work."""
    wide = len(matrices) * len(rows) * matrices.shape[2] * rows.element_size()
    if complete and wide <= WORKSPACE_BYTES:
        own = index.view(1, -1, 1).expand(1, -1, matrices.shape[2])
        return torch.matmul(rows, matrices).gather(0, own).squeeze(0)
    return Tiles(index, len(matrices)).product(rows, matrices)


def _plain_quadratic(weight: Tensor, matrices: Tensor, groups: Tensor, pivots: Tensor | None) -> Tensor:
    if pivots is None:
        return (weight @ matrices[groups] * weight).sum(-1)
    difference = weight - weight[pivots].unsqueeze(1)
    return (difference @ matrices[groups] * difference).sum(-1).clamp_min(0)


class _Projected:
    """P_k = (W - w_p) Sigma_k of every group k, or W Sigma_k without pivots, in chunks (k, C, A) within the workspace.

    All of P is kept for the backward pass if it fits the workspace, otherwise it is made again.

    Attributes:
        parts: per chunk its range of groups, memory for P and scratch memory of the same shape.
        products: (K, C, A) P once all chunks are computed, if it ``fits``.
    """

    def __init__(self, weight: Tensor, matrices: Tensor, groups: Tensor, pivots: Tensor | None = None) -> None:
        self.weight, self.matrices, self.groups, self.pivots = weight, matrices, groups, pivots
        self.unchanged = UnchangedBuffers(matrices)
        (num_classes, dim), length = weight.shape, groups.shape[0]
        self.fits = length * weight.numel() * weight.element_size() <= WORKSPACE_BYTES
        here = on_host(weight)  # elsewhere a look at the groups would be a synchronisation
        self.whole = here and length == matrices.shape[0] and bool((np.diff(groups.numpy()) > 0).all())
        self.loop = here and dim >= LOOP_FROM_DIM and not self.whole
        row_bytes = max(num_classes, dim) * dim * weight.element_size()
        # Two matrices in place are a batch without a copy: a slice whose step is the distance between them.
        step = min(length, 2 if self.loop else rows_per_chunk(row_bytes))
        kept = length if self.fits else step
        self._scratch = Scratch((kept + step, num_classes, dim), weight)
        product, spare = self._scratch.tensor[:kept], self._scratch.tensor[kept:]
        self.products = product
        self.parts = [(slice(0, length), product, spare)]
        if step < length:
            self.parts = []
            for start in range(0, length, step):
                size = min(step, length - start)
                place = start if self.fits else 0
                self.parts.append((slice(start, start + size), product[place : place + size], spare[:size]))

    def multiply(self, part: slice, product: Tensor, spare: Tensor) -> Tensor:
        """Compute a chunk of P; returns the rows that were multiplied: W - w_p in the scratch memory, or W."""
        rows = self.weight.expand_as(product)
        if self.pivots is not None:
            # Differences first: nothing cancels, and the pivot's own row is exactly 0 all the way.
            rows = torch.sub(rows, self.weight.index_select(0, self.pivots[part]).unsqueeze(1), out=spare)
        torch.bmm(rows, self._gather(part), out=product)
        return rows

    def multiply_again(self, part: slice, product: Tensor, spare: Tensor) -> None:
        """In the backward pass: compute a chunk of P once more if it was not kept."""
        if not self.fits:
            self.unchanged.check()
            self.multiply(part, product, spare)

    def _gather(self, part: slice) -> Tensor:
        if self.whole:
            return self.matrices[part]
        groups = self.groups[part]
        if self.loop:
            first, last = int(groups[0]), int(groups[-1])
            if len(groups) == 1 or first < last:
                return self.matrices[first : last + 1 : max(1, last - first)]
        return self.matrices.index_select(0, groups)


class _FullQuadratic(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        matrices: Tensor,
        groups: Tensor,
        pivots: Tensor | None,
        scale: Tensor | None,
        projected: _Projected | None = None,
    ) -> Tensor:
        ctx.save_for_backward(weight)
        if projected is None:
            projected = _Projected(weight.detach(), matrices, groups, pivots)
        ctx.projected = projected
        ctx.scale = scale
        rows = []
        for part, product, spare in projected.parts:
            rows.append(torch.mul(product, projected.multiply(part, product, spare), out=spare).sum(-1))
        values = join_chunks(rows)
        if pivots is not None:
            values.clamp_(min=0)
        return values if scale is None else values.mul_(scale.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        saved = ctx.projected
        if ctx.scale is not None:
            grad = grad * ctx.scale.unsqueeze(1)
        if torch.is_grad_enabled():
            saved.unchanged.check()
            plain = _plain_quadratic(weight, saved.matrices, saved.groups, saved.pivots)
            (second,) = torch.autograd.grad(plain, weight, grad, create_graph=True)
            return second, None, None, None, None, None
        # d margin[k, j] / d w_j = 2 P_k[j] = -d margin[k, j] / d w_p
        result: Tensor | None = None
        toward_pivot = []
        for part, product, spare in saved.parts:
            saved.multiply_again(part, product, spare)
            if saved.loop:
                result = torch.zeros_like(weight) if result is None else result
                for matrix, row in zip(product, grad[part], strict=True):
                    result.addcmul_(matrix, row.unsqueeze(1))
                if saved.pivots is not None:
                    toward_pivot.append((grad[part].unsqueeze(1) @ product).squeeze(1))
                continue
            pull = torch.mul(product, grad[part].unsqueeze(2), out=spare)
            result = pull.sum(0) if result is None else result.add_(pull.sum(0))
            if saved.pivots is not None:
                toward_pivot.append(pull.sum(1))
        if result is None:  # a table without rows
            return torch.zeros_like(weight), None, None, None, None, None
        if saved.pivots is not None:
            result.index_add_(0, saved.pivots, join_chunks(toward_pivot), alpha=-1)
        return result.mul_(2), None, None, None, None, None


class _FullGram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, matrices: Tensor, groups: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.projected = _Projected(weight.detach(), matrices, groups)
        gram = weight.new_empty(len(groups), len(weight), len(weight))
        for part, product, spare in ctx.projected.parts:
            ctx.projected.multiply(part, product, spare)
            torch.matmul(product, weight.t(), out=gram[part])
        return gram

    @staticmethod
    def backward(ctx: Any, grad_gram: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        saved = ctx.projected
        if torch.is_grad_enabled():
            saved.unchanged.check()
            gram = weight @ saved.matrices[saved.groups] @ weight.t()
            (grad,) = torch.autograd.grad(gram, weight, grad_gram, create_graph=True)
            return grad, None, None
        grad = torch.zeros_like(weight)
        for part, product, spare in saved.parts:
            saved.multiply_again(part, product, spare)
            both = grad_gram[part] + grad_gram[part].mT
            grad.addmm_(both.transpose(0, 1).flatten(1), product.flatten(0, 1))
        return grad, None, None


class _SelfAdjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, operator: Callable[[Tensor], Tensor], unchanged: UnchangedBuffers) -> Tensor:
        ctx.operator, ctx.unchanged = operator, unchanged
        return operator(vectors.detach())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.unchanged.check()
        return _SelfAdjoint.apply(grad, ctx.operator, ctx.unchanged), None, None


def class_margins(weight: Tensor, matrices: Tensor, scale: Tensor) -> Tensor:
    """(C, C) margin variances of every class with its own matrix.

    Args:
        weight: (C, A).
        matrices: (C, A, A) symmetric; no gradient flows into them.
        scale: (C,) their factors.
    """
    if torch.compiler.is_compiling():
        return torch.ops.isda.class_margins(weight, matrices, scale)
    if in_transform():
        return _plain_class_margins(weight, matrices, scale)
    return _ClassMargins.apply(weight, matrices, scale)


def _plain_class_margins(weight: Tensor, matrices: Tensor, scale: Tensor) -> Tensor:
    difference = weight - weight.unsqueeze(1)
    return (difference @ matrices * difference).sum(-1).clamp_min(0) * scale.unsqueeze(1)


def _project_differences(weight: Tensor, matrices: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """(k, C, A) differences W - w_k and their products P_k."""
    # Differences first: nothing cancels, and the class's own row is exactly 0 all the way.
    difference = weight - weight[part].unsqueeze(1)
    return difference, difference @ matrices[part]


class _ClassMargins(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, matrices: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.matrices, ctx.scale, ctx.unchanged = matrices, scale, UnchangedBuffers(matrices)
        row_bytes = weight.numel() * weight.element_size()
        ctx.parts = list(chunks(len(weight), 2 * row_bytes))
        keep = len(weight) * row_bytes <= WORKSPACE_BYTES
        values, ctx.kept = [], []
        for part in ctx.parts:
            difference, product = _project_differences(weight, matrices, part)
            values.append((product * difference).sum(-1))
            ctx.kept.append(product if keep else None)
        table = values[0] if len(values) == 1 else torch.cat(values)
        return table.clamp_min_(0).mul_(scale.unsqueeze(1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            ctx.unchanged.check()
            plain = _plain_class_margins(weight, ctx.matrices, ctx.scale)
            (second,) = torch.autograd.grad(plain, weight, grad, create_graph=True)
            return second, None, None
        grad = grad * ctx.scale.unsqueeze(1)
        toward_own, total = [], None
        for part, product in zip(ctx.parts, ctx.kept, strict=True):
            if product is None:
                ctx.unchanged.check()
                _, product = _project_differences(weight, ctx.matrices, part)
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
