"""From rows to their covariances, by name: one pass over the rows, which may count more or less than once.

The same matrices as those of isda.covariance under these names, for rows that are all there at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isda.choices import check_choice
from isda.estimator.covariances import RowCovariances
from isda.estimator.rows import Rows, sum_by_class
from isda.functional.shrinkage import shrinkage_to_diagonal, shrinkage_to_target

__all__ = ["COVARIANCES", "KEEPS_AXES", "class_means", "row_covariances"]

KEEPS_AXES = ("diagonal", "shrunk")
"""Covariances that are another matrix after a rotation of the features."""


def row_covariances(name: str, rows: Rows) -> RowCovariances:
    """The covariances of the classes of these rows."""
    return _MAKERS[check_choice("covariance", name, COVARIANCES)](rows)


def class_means(rows: Rows) -> Tensor:
    """(C, A) means; zeros for a class without rows."""
    return sum_by_class(rows.inputs * rows.counts.unsqueeze(1), rows) / _class_counts(rows).unsqueeze(1)


def _class_counts(rows: Rows) -> Tensor:
    return sum_by_class(rows.counts, rows).clamp_min(torch.finfo(rows.inputs.dtype).tiny)


def _apart(rows: Rows) -> Tensor:
    """(N, A) rows less the mean of their class."""
    return rows.inputs - class_means(rows).index_select(0, rows.labels)


def _moment(apart: Tensor, counts: Tensor) -> Tensor:
    """(A, A) mean outer product."""
    return (apart * (counts / counts.sum()).unsqueeze(1)).t() @ apart


def _full(rows: Rows) -> RowCovariances:
    ones = rows.inputs.new_ones(rows.num_classes)
    return RowCovariances(rows, own=ones, average=_moment(_apart(rows), rows.counts))


def _within(rows: Rows) -> RowCovariances:
    matrix = _moment(_apart(rows), rows.counts)
    return RowCovariances(rows, pooled=rows.inputs.new_ones(rows.num_classes), matrix=matrix, average=matrix)


def _shared(rows: Rows) -> RowCovariances:
    share = (rows.counts / rows.counts.sum()).unsqueeze(1)
    matrix = _moment(rows.inputs - (rows.inputs * share).sum(0), rows.counts)
    return RowCovariances(rows, pooled=rows.inputs.new_ones(rows.num_classes), matrix=matrix, average=matrix)


def _identity(rows: Rows) -> RowCovariances:
    matrix = torch.eye(rows.inputs.shape[1], dtype=rows.inputs.dtype)
    return RowCovariances(rows, pooled=rows.inputs.new_ones(rows.num_classes), average=matrix)


def _diagonal(rows: Rows) -> RowCovariances:
    squares = sum_by_class(_apart(rows).square() * rows.counts.unsqueeze(1), rows)
    average = torch.diag(squares.sum(0) / rows.counts.sum())
    return RowCovariances(rows, diagonal=squares / _class_counts(rows).unsqueeze(1), average=average)


def _shrunk(rows: Rows) -> RowCovariances:
    apart, counts = _apart(rows), _class_counts(rows)
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
        mine = apart[part] * rows.counts[part].sqrt().unsqueeze(1)
        small = mine @ mine.t() if mine.shape[0] < mine.shape[1] else mine.t() @ mine
        square[index] = small.square().sum() / counts[index].square()
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


_MAKERS: dict[str, Callable[[Rows], RowCovariances]] = {
    "within": _within,
    "shrunk": _shrunk,
    "full": _full,
    "diagonal": _diagonal,
    "shared": _shared,
    "identity": _identity,
}

COVARIANCES = tuple(_MAKERS)
"""Names of the covariances that the convex problem takes."""
