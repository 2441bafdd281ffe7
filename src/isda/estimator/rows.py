"""The labelled rows of a fit, sorted by class, and what each of them weighs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Rows", "sum_by_class"]


class Rows(NamedTuple):
    """Rows x_i with their labels y_i, those of a class next to each other."""

    inputs: Tensor
    """(N, A)."""
    labels: Tensor
    """(N,) int64, ascending."""
    loss_weights: Tensor
    """(N,) of each row's loss; their sum is 1."""
    counts: Tensor
    """(N,) how often each row counts in the statistics: sample_weight, or ones."""
    num_classes: int

    @classmethod
    def of(
        cls,
        inputs: Tensor,
        labels: Tensor,
        num_classes: int,
        *,
        weights: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> Rows:
        """Sort rows by class; ``weights`` (N,) of the losses and ``counts`` (N,) of the statistics are ones if None."""
        order = torch.argsort(labels, stable=True)
        ones = torch.ones(len(labels), dtype=inputs.dtype)
        weights = ones if weights is None else weights.to(inputs.dtype)
        counts = ones if counts is None else counts.to(inputs.dtype)
        return cls(inputs[order], labels[order], weights[order] / weights.sum(), counts[order], num_classes)

    def with_inputs(self, inputs: Tensor) -> Rows:
        """The same rows in other coordinates."""
        return self._replace(inputs=inputs)

    def class_slices(self) -> Iterator[tuple[int, slice]]:
        """The classes that occur, and where their rows lie."""
        sizes, start = torch.bincount(self.labels, minlength=self.num_classes).tolist(), 0
        for index, size in enumerate(sizes):
            if size:
                yield index, slice(start, start + size)
            start += size


def sum_by_class(values: Tensor, rows: Rows) -> Tensor:
    """(C, ...) sums of ``values`` (N, ...) over the rows of each class."""
    return values.new_zeros(rows.num_classes, *values.shape[1:]).index_add_(0, rows.labels, values)
