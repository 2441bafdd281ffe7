"""Rows of any classes for networks that stand side by side, one for each class: a table with a column per class."""

from __future__ import annotations

import torch
from torch import Tensor

from isda.devices import send

__all__ = ["ClassTable"]


class ClassTable:
    """Where each row goes in a table (M, K) with as many lines as the most frequent class has rows.

    Equally many rows of each class leave no gaps. Labels are the host's, so no accelerator is asked how long the
    table is.

    Args:
        labels: (N,) classes on the CPU.
        num_classes: K.

    Example:
        >>> table = ClassTable(torch.tensor([1, 1, 0]), 2)
        >>> table.laid_out(torch.tensor([[5.0], [6.0], [7.0]]))
        tensor([[[7.],
                 [5.]],
        <BLANKLINE>
                [[0.],
                 [6.]]])
        >>> table.picked(table.laid_out(torch.tensor([[5.0], [6.0], [7.0]]))).flatten()
        tensor([5., 6., 7.])
    """

    def __init__(self, labels: Tensor, num_classes: int) -> None:
        if not labels.is_cpu:
            raise ValueError(f"labels must be on the CPU, got them on {labels.device}")
        counts = labels.bincount(minlength=num_classes)
        if len(counts) > num_classes:
            raise ValueError(f"labels must be below {num_classes}, got {int(labels.max())}")
        order = labels.argsort(stable=True)
        line = torch.empty_like(labels)
        line[order] = torch.arange(len(labels), device="cpu") - (counts.cumsum(0) - counts)[labels[order]]
        self.lines, self.columns = int(counts.max()), num_classes
        self.places = line * num_classes + labels

    def laid_out(self, rows: Tensor) -> Tensor:
        """(M, K, ...) the rows (N, ...) in their places, zero elsewhere."""
        table = rows.new_zeros(self.lines * self.columns, *rows.shape[1:])
        return table.index_copy(0, send(self.places, rows.device), rows).unflatten(0, (self.lines, self.columns))

    def picked(self, table: Tensor) -> Tensor:
        """(N, ...) the rows out of a table (M, K, ...)."""
        return table.flatten(0, 1).index_select(0, send(self.places, table.device))
