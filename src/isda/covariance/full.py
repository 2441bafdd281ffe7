"""Covariance matrices in full: one per class (the paper's), one of all features, one pooled within the classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from isda._checks import on_host
from isda.covariance.base import WORKSPACE, Covariance, Groups, Once, multiply, parts, root


class FullCovariance(Covariance):
    """A matrix Sigma_c per class, eqs. (1) to (3); C A^2 numbers. See Covariance for the arguments."""

    scatter: Tensor
    """(C, A, A) n_c Sigma_c."""

    def __init__(self, num_classes: int, feature_dim: int, **settings: Any) -> None:
        super().__init__(num_classes, feature_dim, **settings)
        matrices = 1 if self.one_matrix else self.num_classes
        self.register_buffer("scatter", self.mean.new_zeros(matrices, self.feature_dim, self.feature_dim))

    one_matrix = False

    def absorb(self, centred: Tensor, groups: Groups, between: Tensor) -> None:
        """Add outer products; one product of matrices per class."""
        if self.one_matrix:
            block = torch.cat([centred, between])
            self.scatter[0].addmm_(block.t(), block)
        elif on_host(centred):
            sizes = (torch.bincount(groups.slot) + 1).tolist()
            own = torch.arange(len(sizes), device=groups.slot.device)
            order = torch.cat([groups.slot, own]).argsort()
            blocks = torch.cat([centred, between]).index_select(0, order).split(sizes)
            for c, block in zip(groups.classes.tolist(), blocks, strict=True):
                self.scatter[c].addmm_(block.t(), block)
        else:
            member = nn.functional.one_hot(groups.slot, self.num_classes).to(centred.dtype).t().unsqueeze(2)
            for part in parts(self.num_classes, centred.numel()):
                block = torch.cat([centred * member[part], between[part].unsqueeze(1)], 1)
                self.scatter[part].baddbmm_(block.mT, block)

    def margins(self, weight: Tensor, classes: Tensor) -> Tensor:
        """(K, C) variances of the margins."""
        return _Margins.apply(weight, self.scatter, self.scale(classes), classes)

    def product(self, rows: Tensor, groups: Groups) -> Tensor:
        """(N, A) Sigma_y v."""
        scale = self.scale(groups.classes).index_select(0, groups.slot).unsqueeze(1)
        return _Product.apply(rows, self.scatter, groups) * scale

    def factors(self, classes: Tensor) -> Tensor:
        """(K, A, A) roots, by Cholesky where there is one."""
        matrices = self.scatter.index_select(0, torch.zeros_like(classes) if self.one_matrix else classes)
        return covariance_root(matrices * self.scale(classes).view(-1, 1, 1))

    def scale_scatter(self, factors: Tensor) -> None:
        """Scale the matrices."""
        self.scatter.mul_(factors.view(-1, 1, 1))

    def merge_scatter(self, other: Any, between: Tensor) -> None:
        """Add the matrices of another model."""
        self.scatter += other.scatter
        if self.one_matrix:
            self.scatter[0].addmm_(between.t(), between)
        else:
            self.scatter.baddbmm_(between.unsqueeze(2), between.unsqueeze(1))


class WithinCovariance(FullCovariance):
    """One matrix for all classes: sum_c n_c Sigma_c / sum_c n_c, the covariance around the means of the classes."""

    one_matrix = True

    def scale(self, classes: Tensor) -> Tensor:
        """(K,) 1 / n."""
        return (1 / self.count.sum().clamp(min=1).to(self.mean.dtype)).expand(len(classes))

    def margins(self, weight: Tensor, classes: Tensor) -> Tensor:
        """(K, C) variances of the margins, from one product W Sigma."""
        centred = weight - weight.detach().mean(0)
        image = centred @ (self.scatter[0] * self.scale(classes[:1]))
        own = (image * centred).sum(1)
        cross = image.index_select(0, classes) @ centred.t()
        table = own - 2 * cross + own.index_select(0, classes).unsqueeze(1)
        return table.clamp(min=0).scatter(1, classes.unsqueeze(1), 0.0)

    def product(self, rows: Tensor, groups: Groups) -> Tensor:
        """(N, A) Sigma v."""
        return rows @ (self.scatter[0] * self.scale(groups.classes[:1]))

    def forget(self) -> None:
        """Scale all classes alike, down to ``memory`` features for each in the mean."""
        if self.memory is not None:
            total = self.count.sum().clamp(min=1).to(self.mean.dtype)
            part = (self.memory * self.num_means / total).clamp(max=1)
            self.scatter.mul_(part)
            self.count.copy_((self.count * part).round())


class SharedCovariance(WithinCovariance):
    """One matrix for all classes: the covariance of all features together, "single covariance matrix" in the paper."""

    one_class = True


class _Product(torch.autograd.Function):
    """Rows times the scatter of their class, which is symmetric: its own derivative, of any order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, scatter: Tensor, groups: Groups) -> Tensor:
        ctx.groups = groups
        ctx.save_for_backward(scatter)
        return multiply(rows, scatter, groups)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Product.apply(grad, *ctx.saved_tensors, ctx.groups), None, None


class _Margins(torch.autograd.Function):
    """R[k, j] = (w_j - w_k)' Sigma_k (w_j - w_k) by the images P_k = W Sigma_k, (C, A) for each class.

    R[k, j] = w_j' P_k[j] - 2 w_j' P_k[k] + w_k' P_k[k], and with Sigma_k (w_j - w_k) = P_k[j] - P_k[k]
    dR[k, j] / dw_j = 2 (P_k[j] - P_k[k]) = -dR[k, j] / dw_k. W is centred, so that little cancels. P is kept for the
    backward pass where it fits the workspace, and made again where not.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scatter: Tensor, scale: Tensor, classes: Tensor) -> Tensor:
        w = weight.detach() - weight.detach().mean(0)
        table = w.new_empty(len(classes), len(w))
        ctx.keep = len(classes) * w.numel() <= WORKSPACE
        kept = []
        ctx.parts = _class_parts(w, scatter, classes)
        for part in ctx.parts:
            k = classes[part]
            image = _images(w, scatter, k)
            cross = _of_own(image, k) @ w.t()
            table[part] = (image * w).sum(2) - 2 * cross + cross.gather(1, k.unsqueeze(1))
            if ctx.keep:
                kept.append(image)
        ctx.save_for_backward(weight, w, scale, classes, *(kept if ctx.keep else [scatter]))
        return table.mul_(scale.unsqueeze(1)).clamp_(min=0).scatter_(1, classes.unsqueeze(1), 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch.no_grad():
            result = _Margins.gradient(ctx, grad)
        return (Once.apply(result, grad, ctx.saved_tensors[0]) if torch.is_grad_enabled() else result), None, None, None

    @staticmethod
    def gradient(ctx: Any, grad: Tensor) -> Tensor:
        """dL/dW for grad = dL/dR."""
        _, w, scale, classes, *kept = ctx.saved_tensors
        grad = (2 * grad * scale.unsqueeze(1)).scatter_(1, classes.unsqueeze(1), 0.0)
        result = torch.zeros_like(w)
        for i, part in enumerate(ctx.parts):
            k, g = classes[part], grad[part]
            image = kept[i] if ctx.keep else _images(w, kept[0], k)
            own = _of_own(image, k)
            if len(k) == 1:
                result.addcmul_(image[0], g.t())
            else:
                result += (image * g.unsqueeze(2)).sum(0)
            result.addmm_(g.t(), own, alpha=-1)
            to_own = (g.unsqueeze(1) @ image).squeeze(1) - g.sum(1, keepdim=True) * own
            result.index_add_(0, k, to_own, alpha=-1)
        return result


ONE_BY_ONE_FROM = 128
"""Features from which products with the matrices of single classes, not copied, are faster on the host."""


def _class_parts(weight: Tensor, scatter: Tensor, classes: Tensor) -> list[slice]:
    one_by_one = on_host(weight) and weight.shape[1] >= ONE_BY_ONE_FROM and not _are_all(classes, scatter)
    return list(parts(len(classes), WORKSPACE if one_by_one else weight.numel()))


def _are_all(classes: Tensor, scatter: Tensor) -> bool:
    """Whether these are all classes in order, whose matrices need no copy; looked at on the host only."""
    number = len(scatter)
    return on_host(classes) and len(classes) == number and torch.equal(classes, torch.arange(number))


def _images(weight: Tensor, scatter: Tensor, classes: Tensor) -> Tensor:
    """(K, C, A) W times the scatter of each class."""
    if len(classes) == 1 and on_host(classes):
        return (weight @ scatter[int(classes)]).unsqueeze(0)
    return weight @ (scatter if _are_all(classes, scatter) else scatter.index_select(0, classes))


def _of_own(images: Tensor, classes: Tensor) -> Tensor:
    """(K, A) the row of each class in (K, C, A)."""
    return images.gather(1, classes.view(-1, 1, 1).expand(-1, 1, images.shape[2])).squeeze(1)


def covariance_root(matrices: Tensor) -> Tensor:
    """Lower triangular L with L L' = Sigma for (K, A, A) covariances of any rank, variances exact.

    Cholesky of the correlations, shrunk by 2 A eps towards the identity; where rounding makes that fail by an
    eigendecomposition (on the host), or with a shrinkage of A (A + 1) eps (elsewhere, where looking would wait).
    """
    size, eps = matrices.shape[1], torch.finfo(matrices.dtype).eps
    deviation = matrices.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    inverse = torch.where(deviation > 0, 1 / deviation, 0)
    correlation = matrices * inverse.unsqueeze(2) * inverse.unsqueeze(1)

    def shrunk(amount: float) -> tuple[Tensor, Tensor]:
        result = correlation * (1 - min(1.0, amount))
        result.diagonal(dim1=1, dim2=2).fill_(1)
        factor, failed = torch.linalg.cholesky_ex(result)
        return factor, failed.view(-1, 1, 1) > 0

    factor, failed = shrunk(2 * size * eps)
    if not on_host(matrices):
        factor = torch.where(failed, shrunk(size * (size + 1) * eps)[0], factor)
    elif failed.any():
        factor = torch.where(failed, root(correlation), factor)
    return factor * deviation.unsqueeze(2)
