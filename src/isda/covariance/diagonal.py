"""Covariances of few numbers: diagonal, low rank plus diagonal, identity, and factors that are trained."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isda._checks import check_integer, check_number
from isda.covariance.base import Covariance, Groups, Once, multiply, parts


class _DiagonalMargins(torch.autograd.Function):
    """R[k, j] = sum_a d_ka (w_ja - w_ya)^2 for variances d (K, A) and y = classes[k], by two products of matrices."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, variance: Tensor, classes: Tensor) -> Tensor:
        w = weight.detach() - weight.detach().mean(0)
        own = w.index_select(0, classes)
        scaled = variance * own
        table = torch.addmm((scaled * own).sum(1, keepdim=True), scaled, w.t(), alpha=-2)
        table.addmm_(variance, (w * w).t())
        ctx.save_for_backward(weight, w, variance, scaled, classes)
        return table.clamp_(min=0).scatter_(1, classes.unsqueeze(1), 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch.no_grad():
            result = _DiagonalMargins.gradient(ctx, grad)
        return (Once.apply(result, grad, ctx.saved_tensors[0]) if torch.is_grad_enabled() else result), None, None

    @staticmethod
    def gradient(ctx: Any, grad: Tensor) -> Tensor:
        """dL/dW for grad = dL/dR."""
        _, w, variance, scaled, classes = ctx.saved_tensors
        grad = (2 * grad).scatter_(1, classes.unsqueeze(1), 0.0)
        result = (grad.t() @ variance).mul_(w).addmm_(grad.t(), scaled, alpha=-1)
        to_own = variance * (grad @ w) - grad.sum(1, keepdim=True) * scaled
        return result.index_add_(0, classes, to_own, alpha=-1)


def diagonal_margins(weight: Tensor, variance: Tensor, classes: Tensor) -> Tensor:
    """(K, C) sum_a d_ka (w_ja - w_ya)^2 for constant variances d (K, A) and y = classes[k]."""
    return cast(Tensor, _DiagonalMargins.apply(weight, variance, classes))


class DiagonalCovariance(Covariance):
    """The variances of the features, class by class; C A numbers. See Covariance for the arguments."""

    scatter: Tensor
    """(C, A) n_c times the variances."""

    def __init__(self, num_classes: int, feature_dim: int, **settings: Any) -> None:
        super().__init__(num_classes, feature_dim, **settings)
        self.register_buffer("scatter", torch.zeros_like(self.mean))

    def variance(self, classes: Tensor) -> Tensor:
        """(K, A)."""
        return self.scatter.index_select(0, classes) * self.scale(classes).unsqueeze(1)

    def absorb(self, centred: Tensor, groups: Groups, between: Tensor) -> None:
        """Add squares."""
        labels = groups.classes.index_select(0, groups.slot)
        self.scatter.index_add_(0, labels, centred.square()).index_add_(0, groups.classes, between.square())

    def margins(self, weight: Tensor, classes: Tensor) -> Tensor:
        """(K, C) variances of the margins."""
        return diagonal_margins(weight, self.variance(classes), classes)

    def product(self, rows: Tensor, groups: Groups) -> Tensor:
        """(N, A) Sigma_y v."""
        return rows * self.variance(groups.classes).index_select(0, groups.slot)

    def sample(self, labels: Tensor, n: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) draws."""
        deviation = self.variance(labels).sqrt().unsqueeze(1)
        shape = (len(labels), n, self.feature_dim)
        return deviation * torch.randn(shape, generator=generator, dtype=deviation.dtype, device=deviation.device)

    def scale_scatter(self, factors: Tensor) -> None:
        """Scale the variances."""
        self.scatter.mul_(factors.unsqueeze(1))

    def merge_scatter(self, other: Any, between: Tensor) -> None:
        """Add the variances of another model."""
        self.scatter.add_(other.scatter).addcmul_(between, between)


class IdentityCovariance(Covariance):
    """Sigma = I for every class, as in the paper's ablation; features are only counted."""

    def absorb(self, centred: Tensor, groups: Groups, between: Tensor) -> None:
        """Nothing to learn."""

    def margins(self, weight: Tensor, classes: Tensor) -> Tensor:
        """(K, C) squared distances of the weights."""
        return diagonal_margins(weight, weight.new_ones(len(classes), self.feature_dim), classes)

    def product(self, rows: Tensor, groups: Groups) -> Tensor:
        """(N, A) v."""
        return rows

    def sample(self, labels: Tensor, n: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) standard normal draws."""
        shape = (len(labels), n, self.feature_dim)
        return torch.randn(shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)

    def scale_scatter(self, factors: Tensor) -> None:
        """Nothing to scale."""

    def merge_scatter(self, other: Any, between: Tensor) -> None:
        """Nothing to add."""


class LowRankCovariance(DiagonalCovariance):
    """Sigma_c ~ diag(d_c) + B_c' B_c with at most 2r rows in B_c; 2 r C A numbers.

    B_c is a frequent-directions sketch of the centred features (Ghashami et al., 2016). The variances are kept exactly
    beside it, and what the sketch leaves out of them is d_c: the diagonal of Sigma_c is exact, and correlations are
    wrong by at most the trace / (r + 1).

    Args:
        num_classes: C.
        feature_dim: A.
        rank: r.
        **settings: see Covariance.
    """

    sketch: Tensor
    """(C, 2r, A) sqrt(n_c) B_c."""
    fill: Tensor
    """(C,) rows in use."""

    def __init__(self, num_classes: int, feature_dim: int, *, rank: int = 16, **settings: Any) -> None:
        super().__init__(num_classes, feature_dim, **settings)
        self.rank = check_integer("rank", rank)
        self.register_buffer("sketch", self.mean.new_zeros(self.num_classes, 2 * self.rank, self.feature_dim))
        self.register_buffer("fill", torch.zeros_like(self.count))

    def residual(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        """(K, A) d and (K, 2r, A) B of classes."""
        rows = self.sketch.index_select(0, classes) * self.scale(classes).sqrt().view(-1, 1, 1)
        return (self.variance(classes) - rows.square().sum(1)).clamp(min=0), rows

    def absorb(self, centred: Tensor, groups: Groups, between: Tensor) -> None:
        """Add squares, and append the rows to the sketches."""
        super().absorb(centred, groups, between)
        labels = torch.cat([groups.classes.index_select(0, groups.slot), groups.classes])
        append_rows(self.sketch, self.fill, torch.cat([centred, between]), labels)

    def margins(self, weight: Tensor, classes: Tensor) -> Tensor:
        """(K, C) variances of the margins: the diagonal's, and squared distances of the projected weights."""
        tables = []
        for part in parts(len(classes), 2 * self.rank * max(weight.shape)):
            k = classes[part]
            diagonal, rows = self.residual(k)
            projected = (rows.flatten(0, 1) @ weight.t()).view(len(k), -1, len(weight))
            own = projected.gather(2, k.view(-1, 1, 1).expand(-1, projected.shape[1], 1))
            tables.append(diagonal_margins(weight, diagonal, k) + (projected - own).square().sum(1))
        return torch.cat(tables)

    def product(self, rows: Tensor, groups: Groups) -> Tensor:
        """(N, A) Sigma_y v."""
        diagonal, factors = self.residual(groups.classes)
        own = Groups(torch.arange(len(factors), device=rows.device), groups.slot, groups.rows_each)
        return rows * diagonal.index_select(0, groups.slot) + multiply(multiply(rows, factors.mT, own), factors, own)

    def sample(self, labels: Tensor, n: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) draws: independent ones, and some along the sketch."""
        diagonal, rows = self.residual(labels)
        shape = (len(labels), n)
        settings: dict[str, Any] = {"generator": generator, "dtype": rows.dtype, "device": rows.device}
        independent = torch.randn(*shape, self.feature_dim, **settings) * diagonal.sqrt().unsqueeze(1)
        return independent + torch.randn(*shape, rows.shape[1], **settings) @ rows

    def scale_scatter(self, factors: Tensor) -> None:
        """Scale variances and sketches."""
        super().scale_scatter(factors)
        self.sketch.mul_(factors.sqrt().view(-1, 1, 1))

    def merge_scatter(self, other: Any, between: Tensor) -> None:
        """Add variances and sketches of another model."""
        super().merge_scatter(other, between)
        rows = torch.cat([other.sketch, between.unsqueeze(1)], 1)
        classes = torch.arange(self.num_classes, device=rows.device).repeat_interleave(rows.shape[1])
        append_rows(self.sketch, self.fill, rows.flatten(0, 1), classes)


@torch.library.custom_op("isda::append_rows", mutates_args=("sketch", "fill"))
def append_rows(sketch: Tensor, fill: Tensor, rows: Tensor, labels: Tensor) -> None:
    """Append rows (N, A) to the sketches (C, 2r, A) of their classes (N,), and shrink those that overflow.

    For eigenvalues v of X'X in falling order a full sketch keeps its s = 3r/4 strongest directions, the next r lose the
    squared length v_{s+r+1} of the first one dropped, and that is the error made. Off the CPU the host waits once.
    """
    (num_classes, capacity, dim), rank = sketch.shape, sketch.shape[1] // 2
    wanted = torch.where(rows.square().sum(1) > 0, labels, num_classes)  # rows of zeros come last, and nowhere
    ordered, order = wanted.sort(stable=True)
    first = torch.searchsorted(ordered, torch.arange(num_classes + 1, device=rows.device))
    length = fill + first.diff()
    over = length > capacity
    overflowing, longest = torch.stack([over.sum(), length.max()]).tolist()  # the one wait
    kept, owner = ordered < num_classes, ordered.clamp(max=num_classes - 1)
    position = (fill - first[:-1]).index_select(0, owner) + torch.arange(len(rows), device=rows.device)
    rows = rows.index_select(0, order)
    _place(sketch, rows, owner, position, kept & ~over.index_select(0, owner))
    fill.copy_(length)
    if not overflowing:
        return
    members = over.to(torch.int8).argsort(descending=True, stable=True)[:overflowing]
    slot = (over.cumsum(0) - 1).index_select(0, owner)
    waiting, spared = kept & over.index_select(0, owner), 3 * rank // 4
    for part in parts(overflowing, longest * dim):
        stack = rows.new_zeros(part.stop - part.start, longest, dim)
        stack[:, :capacity] = sketch.index_select(0, members[part])
        _place(stack, rows, slot - part.start, position, waiting & (slot >= part.start) & (slot < part.stop))
        sketch.index_copy_(0, members[part], F.pad(shrink(stack, rank, spared), (0, 0, 0, capacity - rank - spared)))
    fill.masked_fill_(over, rank + spared)


@append_rows.register_fake
def _(sketch: Tensor, fill: Tensor, rows: Tensor, labels: Tensor) -> None:
    pass


def _place(stack: Tensor, rows: Tensor, owner: Tensor, position: Tensor, chosen: Tensor) -> None:
    """Put the chosen rows into stack (K, L, A) at [owner, position], where it holds zeros."""
    place = torch.where(chosen, owner * stack.shape[1] + position, 0)
    stack.flatten(0, 1).index_add_(0, place, torch.where(chosen.unsqueeze(1), rows, 0))


def shrink(rows: Tensor, rank: int, spared: int) -> Tensor:
    """(K, s + r, A): the ``spared`` = s strongest directions of rows (K, L, A), and ``rank`` = r more, made shorter."""
    kept_rows = rank + spared
    tall = rows.shape[1] > rows.shape[2]
    values, vectors = torch.linalg.eigh(rows.mT @ rows if tall else rows @ rows.mT)
    missing = max(0, kept_rows + 1 - values.shape[1])
    values = F.pad(values, (missing, 0)).clamp(min=0)
    vectors = F.pad(vectors, (missing, 0))[:, :, -kept_rows:]
    kept, dropped = values[:, -kept_rows:], values[:, -kept_rows - 1].unsqueeze(1)
    squared = torch.cat([kept[:, :rank] - dropped, kept[:, rank:]], 1)
    if tall:
        return (vectors * squared.sqrt().unsqueeze(1)).mT
    factor = (squared / kept.clamp(min=torch.finfo(rows.dtype).tiny)).sqrt()
    return (vectors * factor.unsqueeze(1)).mT @ rows


class LearnedCovariance(Covariance):
    """Sigma_c = D_c D_c' with a trained factor D_c (A, r), as in the paper's comparison with learned covariances.

    Give ``criterion.parameters()`` to the optimizer. The bound alone is smallest for D = 0; the criterion therefore
    adds the uncertainty loss of DistributionNet, max(0, margin - mean entropy of N(0, Sigma_c)), in
    training.

    Args:
        num_classes: C.
        feature_dim: A.
        rank: r; A by default.
        scale_0: standard deviation of each direction at the start.
        uncertainty_weight: factor of the uncertainty loss.
        uncertainty_margin: in nats; by default the entropy at the start.
        **settings: see Covariance.
    """

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        *,
        rank: int | None = None,
        scale_0: float = 1.0,
        uncertainty_weight: float = 1.0,
        uncertainty_margin: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(num_classes, feature_dim, **settings)
        self.rank = self.feature_dim if rank is None else check_integer("rank", rank)
        if self.rank > self.feature_dim:
            raise ValueError(f"rank must be at most feature_dim={self.feature_dim}, got {rank}")
        check_number("scale_0", scale_0, low=1e-30)
        self.uncertainty_weight = check_number("uncertainty_weight", uncertainty_weight)
        start = self.rank * (0.5 * (1 + math.log(2 * math.pi)) + math.log(scale_0))
        self.uncertainty_margin = start if uncertainty_margin is None else float(uncertainty_margin)
        eye = torch.eye(self.feature_dim, self.rank, dtype=self.mean.dtype, device=self.mean.device)
        self.factor = nn.Parameter(scale_0 * eye.repeat(self.num_classes, 1, 1))

    def absorb(self, centred: Tensor, groups: Groups, between: Tensor) -> None:
        """Nothing to learn but by gradient."""

    def margins(self, weight: Tensor, classes: Tensor) -> Tensor:
        """(K, C) squared distances of the projected weights."""
        projected = weight @ self.factor.index_select(0, classes)
        own = projected.gather(1, classes.view(-1, 1, 1).expand(-1, 1, self.rank))
        return (projected - own).square().sum(2)

    def product(self, rows: Tensor, groups: Groups) -> Tensor:
        """(N, A) D D' v."""
        return multiply(multiply(rows, self.factor, groups), self.factor.mT, groups)

    def factors(self, classes: Tensor) -> Tensor:
        """(K, A, r) D."""
        return self.factor.index_select(0, classes)

    def penalty(self) -> Tensor:
        """The weighted uncertainty loss; the entropy is r/2 (1 + log 2 pi) + 1/2 log det D'D."""
        log_det = torch.linalg.slogdet(self.factor.mT @ self.factor).logabsdet
        entropy = 0.5 * (self.rank * (1 + math.log(2 * math.pi)) + log_det)
        return self.uncertainty_weight * (self.uncertainty_margin - entropy.mean()).clamp(min=0)

    def merge(self, other: Any) -> None:
        """Trained factors cannot be merged."""
        raise ValueError("learned covariances cannot be merged")
