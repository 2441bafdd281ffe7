"""Class covariances of fixed rows, in a form in which the bound over all rows is cheap.

Sigma_c = own_c S_c + pooled_c P + diag(d_c): the class's own covariance S_c, one matrix P for all classes, variances.
S_c is never formed. With logits z = W x + b, R[c, j] = (w_j - w_c)' S_c (w_j - w_c) is the variance of the margin
z_j - z_c over the rows of the class, so that it costs N x C numbers beside the logits and no product of its own.
Every R[c, j] is a quadratic form of W, and ``pull`` is its gradient: linear in W at fixed cotangents.
The matrices are those of isda.covariance under the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from isda._utils.choices import check_choice
from isda.functional.bounds import margin_from_gram
from isda.functional.moments import shrinkage_to_diagonal, shrinkage_to_target
from isda.functional.quadratic import centred

_LARGE_CLASSES = 200
"""Rows per class from which on a loop over classes is faster than indices of rows."""


class ClassRows(NamedTuple):
    """Rows x_i with their labels y_i, sorted by class."""

    inputs: Tensor  # (N, A)
    labels: Tensor  # (N,) int64, ascending
    loss_weights: Tensor  # (N,) of each row's loss; their sum is 1
    counts: Tensor
    """(N,) weights in the statistics: sample_weight, or ones."""
    num_classes: int
    variances: Tensor | None = None
    """(A,) the pooled covariance within classes, if rows are centred and in its principal axes."""

    @classmethod
    def of(
        cls,
        inputs: Tensor,
        labels: Tensor,
        num_classes: int,
        *,
        weights: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> ClassRows:
        """Sort rows by class; ``weights`` (N,) of the losses and ``counts`` (N,) of the statistics are ones if None."""
        order = torch.argsort(labels, stable=True)
        ones = torch.ones(len(labels), dtype=inputs.dtype)
        weights = ones if weights is None else weights.to(inputs.dtype)
        counts = ones if counts is None else counts.to(inputs.dtype)
        return cls(inputs[order], labels[order], weights[order] / weights.sum(), counts[order], num_classes)

    def class_slices(self) -> Iterator[tuple[int, slice]]:
        """The classes that occur, with the slices of their rows."""
        starts = np.searchsorted(self.labels.numpy(), np.arange(self.num_classes + 1)).tolist()
        for index, (start, end) in enumerate(pairwise(starts)):
            if end > start:
                yield index, slice(start, end)

    def targets_of(self, values: Tensor) -> Tensor:
        """(N, 1) entries of ``values`` (N, C) at the labels."""
        return values.gather(1, self.labels.unsqueeze(1))

    def fill_targets(self, values: Tensor, column: Tensor | None) -> Tensor:
        """Replace the entries of ``values`` (N, C) at the labels by ``column`` (N, 1), or by zeros; in place."""
        if len(self.labels) < _LARGE_CLASSES * self.num_classes:
            labels = self.labels.unsqueeze(1)
            return values.scatter_(1, labels, 0) if column is None else values.scatter_(1, labels, column)
        for index, part in self.class_slices():
            values[part, index] = 0 if column is None else column[part, 0]
        return values

    def by_row(self, table: Tensor) -> Tensor:
        """(N, C) the row of ``table`` (C, C) of each label, stored class by class as logits are."""
        return table.t().index_select(1, self.labels).t()


def sum_by_class(values: Tensor, rows: ClassRows) -> Tensor:
    """(C, ...) sums of ``values`` (N, ...) over the rows of each class."""
    if values.ndim == 2 and not values.is_contiguous():  # logits, which are stored class by class
        starts = np.searchsorted(rows.labels.numpy(), np.arange(rows.num_classes + 1))
        occurring, sums = starts[1:] > starts[:-1], values.new_zeros(rows.num_classes, values.shape[1])
        sums.numpy()[occurring] = np.add.reduceat(values.t().numpy(), starts[:-1][occurring], axis=1).T
        return sums
    return values.new_zeros(rows.num_classes, *values.shape[1:]).index_add_(0, rows.labels, values)


def _class_counts(rows: ClassRows) -> Tensor:
    """(C,) sums of the counts, at least the smallest positive number."""
    return sum_by_class(rows.counts, rows).clamp_min(torch.finfo(rows.inputs.dtype).tiny)


class WeightLogitGradient(NamedTuple):
    """A gradient in two parts: with respect to the weights (C, A), and to the logits (N, C) of all rows."""

    weight: Tensor | None
    logits: Tensor | None


class RowCovariances(NamedTuple):
    """Sigma_c = own_c S_c + pooled_c P + diag(d_c) for the classes of given rows; a part that is None is zero."""

    rows: ClassRows
    own: Tensor | None = None  # (C,)
    pooled: Tensor | None = None  # (C,)
    matrix: Tensor | None = None
    """(A, A) the matrix P, or (A,) its diagonal if there is nothing else; None for the identity."""
    diagonal: Tensor | None = None  # (C, A)
    average: Tensor | None = None
    """(A, A) about their mean over all rows, for the preconditioner; None if the axes are principal ones."""
    moment: Tensor | None = None
    """(A, A) second moments of the rows, for the preconditioner; None if the axes are principal ones."""

    # -- the published bound: margins from the class's own weight --------------------------------------------------

    def margins(self, weight: Tensor, logits: Tensor) -> Tensor:
        """(C, C) table R[c, j] = (w_j - w_c)' Sigma_c (w_j - w_c)."""
        weight, table = centred(weight), weight.new_zeros(len(weight), len(weight))
        if self.own is not None:
            squares = self.rows.counts.unsqueeze(1) * self._centred_margins(logits).square()
            table += (self.own / _class_counts(self.rows)).unsqueeze(1) * sum_by_class(squares, self.rows)
        if self.pooled is not None:
            table += self.pooled.unsqueeze(1) * margin_from_gram(self._product(weight) @ weight.t())
        if self.diagonal is not None:
            own = self.diagonal * weight
            squares = self.diagonal @ weight.square().t() - 2 * own @ weight.t() + (own * weight).sum(1, keepdim=True)
            table += squares.clamp_min(0).fill_diagonal_(0)
        return table

    def pull_margins(self, weight: Tensor, logits: Tensor, table: Tensor) -> WeightLogitGradient:
        """The gradient of 1/2 sum_cj table[c, j] R[c, j]."""
        weight, by_weight, by_logits = centred(weight), None, None
        if self.own is not None:
            share = (self.own / _class_counts(self.rows)).unsqueeze(1)
            share = (share * table).index_select(0, self.rows.labels)
            by_logits = share.mul_(self._centred_margins(logits)).mul_(self.rows.counts.unsqueeze(1))
            by_logits.scatter_add_(1, self.rows.labels.unsqueeze(1), -by_logits.sum(1, keepdim=True))
        if self.pooled is not None:
            by_weight = _laplacian(self.pooled.unsqueeze(1) * table) @ self._product(weight)
        if self.diagonal is not None:
            own = self.diagonal * weight
            toward = (table.t() @ self.diagonal) * weight - table.t() @ own
            toward -= self.diagonal * (table @ weight) - own * table.sum(1, keepdim=True)
            by_weight = toward if by_weight is None else by_weight + toward
        return WeightLogitGradient(by_weight, by_logits)

    # -- the tilted bound: margins from a mean weight that differs by row --------------------------------------------

    def blocks(self) -> list[tuple[int, slice]]:
        """Ranges of rows with one covariance, and a class that has it."""
        if self.own is None and self.diagonal is None:  # a multiple of P for every class
            return [(0, slice(0, len(self.rows.labels)))]
        return list(self.rows.class_slices())

    def gram(self, weight: Tensor, logits: Tensor) -> Callable[[int, slice], Tensor]:
        """A function that computes the (C, C) table W Sigma_c W' of a block."""
        weight = centred(weight)
        common = None if self.pooled is None else self._product(weight) @ weight.t()

        def table(index: int, part: slice) -> Tensor:
            product = weight.new_zeros(len(weight), len(weight))
            if self.own is not None:
                spread, counts = self._block_spread(logits, part), self.rows.counts[part]
                product = product.addmm(spread.t(), spread * (counts * self.own[index] / counts.sum()).unsqueeze(1))
            if self.pooled is not None and common is not None:
                product = torch.add(product, common, alpha=float(self.pooled[index]))
            if self.diagonal is not None:
                product = product.addmm(weight * self.diagonal[index], weight.t())
            return product

        return table

    def pull_gram(
        self, weight: Tensor, logits: Tensor
    ) -> tuple[Callable[[int, slice, Tensor], None], Callable[[], WeightLogitGradient]]:
        """Functions that add a block's symmetric L (C, C), and that return the gradient of 1/2 sum tr(L W Sigma W')."""
        weight = centred(weight)
        common = weight.new_zeros(len(weight), len(weight)) if self.pooled is not None else None
        by_weight = torch.zeros_like(weight) if self.diagonal is not None else None
        by_logits = torch.zeros_like(logits) if self.own is not None else None

        def add(index: int, part: slice, laplacian: Tensor) -> None:
            if self.own is not None and by_logits is not None:
                counts = self.rows.counts[part]
                share = (counts * self.own[index] / counts.sum()).unsqueeze(1)
                by_logits[part] = self._block_spread(logits, part) @ laplacian * share
            if self.pooled is not None and common is not None:
                common.add_(laplacian, alpha=float(self.pooled[index]))
            if self.diagonal is not None and by_weight is not None:
                by_weight.addmm_(laplacian, weight * self.diagonal[index])

        def total() -> WeightLogitGradient:
            if common is None:
                return WeightLogitGradient(by_weight, by_logits)
            pooled = common @ self._product(weight)
            return WeightLogitGradient(pooled if by_weight is None else pooled + by_weight, by_logits)

        return add, total

    # -- parts -------------------------------------------------------------------------------------------------------

    def _product(self, weight: Tensor) -> Tensor:
        if self.matrix is None:
            return weight
        return weight * self.matrix if self.matrix.ndim == 1 else weight @ self.matrix

    def _centred_margins(self, logits: Tensor) -> Tensor:
        """(N, C) margins z_j - z_y minus their mean over the rows of the class."""
        return _minus_class_mean(logits - logits.gather(1, self.rows.labels.unsqueeze(1)), self.rows)

    def _block_spread(self, logits: Tensor, part: slice) -> Tensor:
        counts, values = self.rows.counts[part].unsqueeze(1), logits[part]
        return values - (values * counts).sum(0) / counts.sum()


def _laplacian(table: Tensor) -> Tensor:
    """sum_cj table[c, j] (e_j - e_c)(e_j - e_c)'."""
    both = table + table.t()
    return torch.diag(both.sum(1)) - both


KEEPS_AXES = ("diagonal", "shrunk")
"""Covariances that a rotation of the features changes."""


def row_covariances(name: str, rows: ClassRows) -> RowCovariances:
    """The covariances of the classes of these rows."""
    made = _MAKERS[check_choice("covariance", name, COVARIANCES)](rows)
    if rows.variances is not None:
        return made
    return made._replace(moment=(rows.inputs * rows.loss_weights.unsqueeze(1)).t() @ rows.inputs)


def _minus_class_mean(values: Tensor, rows: ClassRows) -> Tensor:
    """(N, ...) values minus their mean over the rows of the class."""
    means = sum_by_class(values * rows.counts.unsqueeze(1), rows) / _class_counts(rows).unsqueeze(1)
    return values - means.index_select(0, rows.labels)


def _moment(centred_rows: Tensor, counts: Tensor) -> Tensor:
    """(A, A) mean outer product."""
    return (centred_rows * (counts / counts.sum()).unsqueeze(1)).t() @ centred_rows


def within_covariance(rows: ClassRows) -> Tensor:
    """(A, A) the pooled covariance within classes."""
    return _moment(_minus_class_mean(rows.inputs, rows), rows.counts)


def class_means(rows: ClassRows) -> Tensor:
    """(C, A) means of the rows of each class, by their weights in the loss, times the roots of the class's weight."""
    sizes = sum_by_class(rows.loss_weights, rows).clamp_min(torch.finfo(rows.inputs.dtype).tiny)
    return sum_by_class(rows.inputs * rows.loss_weights.unsqueeze(1), rows) / sizes.sqrt().unsqueeze(1)


def class_centres(rows: ClassRows) -> Tensor:
    """(C, A) means of the rows of each class."""
    return sum_by_class(rows.inputs * rows.counts.unsqueeze(1), rows) / _class_counts(rows).unsqueeze(1)


def _full(rows: ClassRows) -> RowCovariances:
    average = None if rows.variances is not None else within_covariance(rows)
    return RowCovariances(rows, own=rows.inputs.new_ones(rows.num_classes), average=average)


def _within(rows: ClassRows) -> RowCovariances:
    ones = rows.inputs.new_ones(rows.num_classes)
    if rows.variances is not None:
        return RowCovariances(rows, pooled=ones, matrix=rows.variances)
    matrix = within_covariance(rows)
    return RowCovariances(rows, pooled=ones, matrix=matrix, average=matrix)


def _shared(rows: ClassRows) -> RowCovariances:
    share = (rows.counts / rows.counts.sum()).unsqueeze(1)
    matrix = _moment(rows.inputs - (rows.inputs * share).sum(0), rows.counts)
    return RowCovariances(rows, pooled=rows.inputs.new_ones(rows.num_classes), matrix=matrix, average=matrix)


def _identity(rows: ClassRows) -> RowCovariances:
    dim, ones = rows.inputs.shape[1], rows.inputs.new_ones(rows.num_classes)
    average = None if rows.variances is not None else torch.eye(dim, dtype=ones.dtype)
    return RowCovariances(rows, pooled=ones, average=average)


def _diagonal(rows: ClassRows) -> RowCovariances:
    squares = sum_by_class(_minus_class_mean(rows.inputs, rows).square() * rows.counts.unsqueeze(1), rows)
    average = torch.diag(squares.sum(0) / rows.counts.sum())
    return RowCovariances(rows, diagonal=squares / _class_counts(rows).unsqueeze(1), average=average)


def _shrunk(rows: ClassRows) -> RowCovariances:
    apart, counts = _minus_class_mean(rows.inputs, rows), _class_counts(rows)
    within = _moment(apart, rows.counts)
    variances = within.diagonal()
    occurring = sum_by_class(torch.ones_like(rows.counts), rows) > 0
    freedom = (rows.counts.sum() - occurring.sum()).clamp_min(0)
    toward = shrinkage_to_diagonal(freedom, variances.sum(), within.square().sum(), variances.square().sum())
    target = (1 - toward) * within + toward * torch.diag(variances)
    weighted = apart * rows.counts.unsqueeze(1)
    trace = sum_by_class((weighted * apart).sum(1), rows) / counts
    inner = sum_by_class((weighted * (apart @ target)).sum(1), rows) / counts
    square = torch.zeros_like(trace)
    for index, part in rows.class_slices():
        own = apart[part] * rows.counts[part].sqrt().unsqueeze(1)
        gram = own @ own.t() if own.shape[0] < own.shape[1] else own.t() @ own
        square[index] = gram.square().sum() / counts[index].square()
    distance = (square - 2 * inner + target.square().sum()).clamp_min(0)
    given_up = shrinkage_to_target(sum_by_class(rows.counts, rows) - 1, trace, square, distance)
    return RowCovariances(
        rows,
        own=1 - given_up,
        pooled=given_up * (1 - toward),
        matrix=within,
        diagonal=torch.outer(given_up * toward, variances),
        average=within,
    )


_MAKERS: dict[str, Callable[[ClassRows], RowCovariances]] = {
    "within": _within,
    "shrunk": _shrunk,
    "full": _full,
    "diagonal": _diagonal,
    "shared": _shared,
    "identity": _identity,
}

COVARIANCES = tuple(_MAKERS)
"""Names of the covariances that the convex problem takes."""
