"""Which classes occur in a batch, and which rows belong to them.

Everything ISDA needs depends on the class of a sample, never on the sample itself, so the work is done once per class
that occurs and then handed out to the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from isda.devices import on_host

__all__ = [
    "LOOP_FROM_DIM",
    "WORKSPACE_BYTES",
    "Groups",
    "chunks",
    "group_rows",
    "places_in_blocks",
    "rows_per_chunk",
]

WORKSPACE_BYTES = 32 * 2**20
"""Upper limit of any temporary that would otherwise grow like rows x classes x features."""

LOOP_FROM_DIM = 192
"""Feature dimension from which, on the CPU, a loop over matrices in place beats batched products over gathered ones."""


class Groups:
    """The rows of a batch grouped by class.

    Attributes:
        labels: (N,) the class of each row.
        classes: (K,) class indices. On the CPU those that occur, once each. Elsewhere the host would have to wait to
            learn K: there they are either all of the classes in turn or, where the batch has fewer rows, the class of
            every row.
        slot: (N,) position of each row's class in ``classes``.
        complete: whether ``classes`` are all of the classes in turn.
        counts: (C,) number of rows of every class, where the host knows it for free.
    """

    def __init__(
        self,
        labels: Tensor,
        num_classes: int,
        classes: Tensor | None = None,
        slot: Tensor | None = None,
        counts: np.ndarray | None = None,
    ) -> None:
        self.labels, self.counts, self.complete = labels, counts, classes is None
        self._num_classes, self._classes, self._slot = num_classes, classes, slot

    @cached_property
    def classes(self) -> Tensor:
        """(K,) class indices; see above."""
        return torch.arange(self._num_classes, device=self.labels.device) if self._classes is None else self._classes

    @cached_property
    def slot(self) -> Tensor:
        """(N,) position of each row's class in ``classes``."""
        if self.complete:
            return self.labels
        return torch.arange(len(self.labels), device=self.labels.device) if self._slot is None else self._slot

    @property
    def one_slot_per_row(self) -> bool:
        """Whether row i is the only one of slot i."""
        return self._classes is self.labels

    @cached_property
    def sizes(self) -> list[int]:
        """Number of rows per slot; for groups on the CPU."""
        return np.bincount(self.slot.numpy(), minlength=len(self.classes)).tolist()

    @cached_property
    def order(self) -> Tensor:
        """(N,) permutation that sorts the rows by slot and keeps their order within a slot; on the CPU."""
        # numpy's stable sort of small integers is a radix sort.
        return torch.from_numpy(np.argsort(self.slot.numpy(), kind="stable"))

    @cached_property
    def padded(self) -> tuple[Tensor, int]:
        """(N,) place of each row when every slot gets a block of the same length, and that length; on the CPU."""
        place, longest = places_in_blocks(self.slot.numpy(), np.asarray(self.sizes))
        return torch.from_numpy(place), longest

    @cached_property
    def inverse_order(self) -> Tensor:
        """(N,) permutation that undoes ``order``."""
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(len(self.order), device=self.order.device)
        return inverse


def group_rows(targets: Tensor, num_classes: int, *, exact: bool | None = None) -> Groups:
    """Group rows by class.

    Args:
        targets: (N,) class indices, all in 0..num_classes-1.
        num_classes: number of classes C.
        exact: whether ``classes`` holds just the classes that occur, which only the CPU can tell without waiting; by
            default it does there, and elsewhere their number is min(C, N).

    Example:
        >>> groups = group_rows(torch.tensor([7, 2, 7]), num_classes=10)
        >>> groups.classes.tolist(), groups.slot.tolist()
        ([2, 7], [1, 0, 1])
    """
    if on_host(targets) and exact is not False:
        # The same bookkeeping in numpy: for a batch of a hundred rows the calls themselves are the cost.
        labels = targets.numpy()
        counts = np.bincount(labels, minlength=num_classes)
        (present,) = counts.nonzero()
        complete = len(present) == num_classes
        if complete:
            return Groups(targets, num_classes, counts=counts)
        slot = torch.from_numpy(np.cumsum(counts > 0)[labels] - 1)
        return Groups(targets, num_classes, torch.from_numpy(present), slot, counts)
    return Groups(targets, num_classes, None if num_classes <= len(targets) else targets)


def places_in_blocks(labels: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, int]:
    """(N,) place of each row when every label gets a block of the same length, one after the other, and that length.

    Example:
        >>> places, length = places_in_blocks(np.array([1, 0, 1]), sizes=np.array([1, 2]))
        >>> places.tolist(), length
        ([2, 0, 3], 2)
    """
    longest = int(sizes.max())
    order = np.argsort(labels, kind="stable")  # a radix sort for small integers
    shift = np.arange(len(sizes)) * longest + sizes - np.cumsum(sizes)
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) + np.repeat(shift, sizes)
    return place, longest


def rows_per_chunk(row_bytes: int) -> int:
    """How many rows of ``row_bytes`` bytes fit into the workspace (at least one)."""
    return max(1, WORKSPACE_BYTES // max(1, row_bytes))


def chunks(length: int, row_bytes: int) -> Iterator[slice]:
    """Slices that cover ``range(length)`` such that each holds at most ``WORKSPACE_BYTES``."""
    step = rows_per_chunk(row_bytes)
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))
