"""What all covariance models share: rows grouped by class, counts and means learned online, draws, merging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from isda._checks import check_integer, check_labels, check_rows, finite_rows, on_host
from isda.distributed import gather_rows

WORKSPACE = 2**26
"""Numbers that a temporary may hold: 256 MB in float32."""


def outside_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Statistics and bounds are computed in float32 or better."""
    kind = device.type if torch.amp.is_autocast_available(device.type) else "cpu"
    return torch.autocast(kind, enabled=False)


class Groups(NamedTuple):
    """The classes (K,) that a batch works with, and which of them each of its rows belongs to: slot (N,)."""

    classes: Tensor
    slot: Tensor
    rows_each: int = 0
    """How many consecutive rows every class has; 0 where that is not so."""

    @classmethod
    def of(cls, labels: Tensor, num_classes: int) -> Groups:
        """On the host the classes that occur. Elsewhere, where counting them would wait, all; or one for each row."""
        if on_host(labels):
            return cls(*torch.unique(labels, return_inverse=True))
        if num_classes <= len(labels):
            return cls(torch.arange(num_classes, device=labels.device), labels)
        return cls(labels, torch.arange(len(labels), device=labels.device))

    @classmethod
    def of_update(cls, labels: Tensor, num_classes: int) -> Groups:
        """On the host the classes that occur, elsewhere all: no class is there twice."""
        if on_host(labels):
            return cls(*torch.unique(labels, return_inverse=True))
        return cls(torch.arange(num_classes, device=labels.device), labels)

    @classmethod
    def equal(cls, classes: Tensor, rows_each: int) -> Groups:
        """As many rows for each of the classes."""
        return cls(classes, torch.arange(len(classes), device=classes.device).repeat_interleave(rows_each), rows_each)


def parts(total: int, row_size: int) -> Iterator[slice]:
    """Slices of ``total`` rows of ``row_size`` numbers that fit the workspace."""
    step = max(1, WORKSPACE // max(row_size, 1))
    return (slice(first, min(first + step, total)) for first in range(0, total, step))


def multiply(rows: Tensor, matrices: Tensor, groups: Groups) -> Tensor:
    """(N, B): each row (A,) times the matrix (A, B) of its class; ``matrices`` are (C, A, B), or (1, A, B) for all."""
    if len(matrices) == 1:
        return rows @ matrices[0]
    if groups.rows_each:
        stacks = rows.unflatten(0, (-1, groups.rows_each)) @ matrices.index_select(0, groups.classes)
        return stacks.flatten(0, 1)
    if on_host(rows):
        order = groups.slot.argsort()
        sizes = torch.bincount(groups.slot, minlength=len(groups.classes)).tolist()
        blocks = rows.index_select(0, order).split(sizes)
        products = [block @ matrices[c] for c, block in zip(groups.classes.tolist(), blocks, strict=True)]
        return torch.cat(products).index_select(0, order.argsort())
    labels = groups.classes.index_select(0, groups.slot)
    products = [
        torch.bmm(rows[part].unsqueeze(1), matrices.index_select(0, labels[part])).squeeze(1)
        for part in parts(len(rows), matrices[0].numel())
    ]
    return torch.cat(products)


class Covariance(nn.Module):
    """Class-conditional covariances Sigma_c of features with A dimensions, for C classes.

    A model of one's own derives from this class and defines ``absorb``, ``product`` and ``covariance``, or replaces any
    method below by a better one. Sigma of a class not seen yet is zero.

    Args:
        num_classes: C.
        feature_dim: A.
        memory: before an update, the count of a class is capped at this number, its scatter scaled alike: older
            features weigh less. None, as in the paper: all features weigh the same.
        sync: whether updates gather the rows of all processes of torch.distributed.
        process_group: the processes that share statistics; None for all.
        device: where the statistics live.
        dtype: their type, at least float32.
    """

    count: Tensor
    """(C,) features seen per class, int64."""
    mean: Tensor
    """(C, A)."""

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        *,
        memory: int | None = None,
        sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_classes = check_integer("num_classes", num_classes)
        self.feature_dim = check_integer("feature_dim", feature_dim)
        self.memory = None if memory is None else check_integer("memory", memory)
        self.sync, self.process_group = sync, process_group
        self.num_means = 1 if self.one_class else self.num_classes
        dtype = torch.promote_types(dtype or torch.float32, torch.float32)
        self.register_buffer("count", torch.zeros(self.num_means, dtype=torch.int64, device=device))
        self.register_buffer("mean", torch.zeros(self.num_means, self.feature_dim, dtype=dtype, device=device))

    one_class = False
    """Whether all features are taken for one class."""

    # -- what a model defines ----------------------------------------------------------------------------------------

    def absorb(self, centred: Tensor, groups: Groups, between: Tensor) -> None:
        """Add outer products: of rows (N, A) around the means of their classes, and of a row (K, A) for each class."""
        raise NotImplementedError

    def product(self, rows: Tensor, groups: Groups) -> Tensor:
        """(N, A) Sigma_y v of rows v, differentiable in the rows."""
        raise NotImplementedError

    def covariance(self, index: int) -> Tensor:
        """(A, A) Sigma of a class."""
        eye = torch.eye(self.feature_dim, dtype=self.mean.dtype, device=self.mean.device)
        classes = torch.full((1,), index, device=self.mean.device)
        return self.product(eye, Groups.equal(classes, self.feature_dim))

    def scale_scatter(self, factors: Tensor) -> None:
        """Scale what was absorbed by a factor (C,) for each class; needed for ``memory``."""
        raise NotImplementedError

    def merge_scatter(self, other: Any, between: Tensor) -> None:
        """Add the scatter of another model, and the outer product of a row (C, A) per class; needed for ``merge``."""
        raise NotImplementedError

    def penalty(self) -> Tensor | None:
        """A term that the criterion adds to its loss in training."""
        return None

    # -- what follows from that --------------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self, features: Tensor, labels: Tensor, counted: Tensor | None = None) -> None:
        """Learn from features (N, A) of the classes (N,), eqs. (1) to (3), but for rows that are not ``counted``.

        With n features seen, m new ones of mean b: M2 += Xc' Xc + (n m / (n + m)) (b - mean)(b - mean)' and
        mean += (b - mean) m / (n + m); Sigma = M2 / n. Any order and split of the features gives the same. Rows that
        are not finite raise on the host, and do not count elsewhere.
        """
        check_rows(features, labels, self.feature_dim)
        check_labels(labels, self.num_classes, counted)
        rows, labels = features.to(self.mean.dtype), labels.long()
        if not on_host(rows):
            finite = finite_rows(rows)
            counted = finite if counted is None else finite & counted
        if self.sync:
            rows, labels, counted = gather_rows(rows, labels, counted, self.process_group)
        if self.one_class:
            labels = torch.zeros_like(labels)
        if counted is not None:
            labels, rows = torch.where(counted, labels, 0), torch.where(counted.unsqueeze(1), rows, 0)
        self.forget()
        groups = Groups.of_update(labels, self.num_means)
        seen, mean = self.count.index_select(0, groups.classes), self.mean.index_select(0, groups.classes)
        ones = rows.new_ones(len(rows)) if counted is None else counted.to(rows.dtype)
        new = rows.new_zeros(len(seen)).index_add_(0, groups.slot, ones)
        batch_mean = torch.zeros_like(mean).index_add_(0, groups.slot, rows).div_(new.clamp(min=1).unsqueeze(1))
        centred = rows - batch_mean.index_select(0, groups.slot)
        if counted is not None:
            centred.mul_(ones.unsqueeze(1))
        gap = torch.where((new > 0).unsqueeze(1), batch_mean - mean, 0)
        part = new / (seen + new).clamp(min=1)
        with outside_autocast(rows.device):
            self.absorb(centred, groups, gap * (seen * part).sqrt().unsqueeze(1))
        self.mean.index_add_(0, groups.classes, gap * part.unsqueeze(1))
        self.count.index_add_(0, groups.classes, new.round().long())

    def forget(self) -> None:
        """Cap the counts of classes at ``memory``, and scale what was learned of them alike."""
        if self.memory is not None:
            kept = self.count.clamp(max=self.memory)
            self.scale_scatter(kept.to(self.mean.dtype) / self.count.clamp(min=1))
            self.count.copy_(kept)

    def scale(self, classes: Tensor) -> Tensor:
        """(K,) 1 / n of classes, by which a scatter becomes a covariance."""
        count = self.count.index_select(0, torch.zeros_like(classes) if self.one_class else classes)
        return 1 / count.clamp(min=1).to(self.mean.dtype)

    def margins(self, weight: Tensor, classes: Tensor) -> Tensor:
        """(K, C) R[k, j] = (w_j - w_y)' Sigma_y (w_j - w_y), y = classes[k]: the variance of the margin z_j - z_y."""
        table = []
        for part in parts(len(classes), weight.numel()):
            own = weight.index_select(0, classes[part])
            rows = (weight - own.unsqueeze(1)).flatten(0, 1)
            image = self.product(rows, Groups.equal(classes[part], len(weight)))
            table.append((rows * image).sum(1).view(-1, len(weight)))
        return torch.cat(table).clamp(min=0)

    def factors(self, classes: Tensor) -> Tensor:
        """(K, A, r) matrices L with Sigma = L L'."""
        return torch.stack([root(self.covariance(c)) for c in classes.tolist()])

    def sample(self, labels: Tensor, n: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        """(N, n, A) draws from N(0, Sigma_y), eq. (4)."""
        classes, slot, _ = Groups.of(labels, self.num_classes)
        factors = self.factors(classes)
        shape = (len(labels) * n, factors.shape[2])
        noise = torch.randn(shape, generator=generator, dtype=factors.dtype, device=factors.device)
        groups = Groups(torch.arange(len(classes), device=slot.device), slot.repeat_interleave(n))
        return multiply(noise, factors.mT, groups).view(len(labels), n, -1)

    @torch.no_grad()
    def merge(self, other: Any) -> None:
        """Learn all that ``other``, a model of the same kind and sizes, has seen."""
        if (
            type(other) is not type(self)
            or other.count.shape != self.count.shape
            or other.mean.shape != self.mean.shape
        ):
            raise ValueError(f"other must be a {type(self).__name__} of the same sizes, got {other!r}")
        seen, new = self.count.to(self.mean.dtype), other.count.to(self.mean.dtype)
        gap, part = other.mean - self.mean, new / (seen + new).clamp(min=1)
        gap = torch.where((new > 0).unsqueeze(1), gap, 0)
        self.merge_scatter(other, gap * (seen * part).sqrt().unsqueeze(1))
        self.mean += gap * part.unsqueeze(1)
        self.count += other.count

    @torch.no_grad()
    def reset(self) -> None:
        """Forget everything."""
        for buffer in self.buffers():
            buffer.zero_()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Covariance:
        """Move or convert, but let ``.half()`` and ``.bfloat16()`` leave the statistics in their dtype."""

        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrower = moved.is_floating_point() and moved.dtype.itemsize < 4
            return tensor.to(moved.device) if narrower else moved

        super()._apply(keep_precision, recurse)
        return self

    def extra_repr(self) -> str:
        """Show the sizes in repr()."""
        memory = "" if self.memory is None else f", memory={self.memory}"
        return f"num_classes={self.num_classes}, feature_dim={self.feature_dim}{memory}"


class Once(torch.autograd.Function):
    """A gradient that raises where it is differentiated by what it was made of.

    torch.autograd.function.once_differentiable would leave out a term in silence where torch.autograd.grad is asked for
    the derivative by one of the sources.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        """The gradient."""
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """An error."""
        raise RuntimeError("there is no second derivative of the published bound with this covariance")


def root(matrix: Tensor) -> Tensor:
    """L with L L' = Sigma for a positive semi-definite matrix (..., A, A) of any rank."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
