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

WORKSPACE_BYTES = 32 * 2**20
"""Upper limit of any temporary that would otherwise grow like rows x classes x features."""

LOOP_FROM_DIM = 192
"""Feature dimension from which, on the CPU, a loop over matrices in place beats batched products over gathered ones."""


class Groups:
    """The rows of a batch grouped by class.

    Attributes:
        classes: (K,) distinct class indices. On a device that would have to wait for the host to learn K, K is
            min(num_classes, N) and some of the classes do not occur.
        slot: (N,) position of each row's class in ``classes``.
        counts: (C,) number of rows of every class, where the host knows it for free.
    """

    def __init__(self, classes: Tensor, slot: Tensor, counts: np.ndarray | None = None) -> None:
        self.classes, self.slot, self.counts = classes, slot, counts

    @cached_property
    def sizes(self) -> list[int]:
        """Number of rows per slot, on the host (waits for the device, once)."""
        return np.bincount(self.slot.cpu().numpy(), minlength=len(self.classes)).tolist()

    @cached_property
    def order(self) -> Tensor:
        """(N,) permutation that sorts the rows by slot and keeps their order within a slot."""
        if self.slot.device.type == "cpu":
            # numpy's stable sort of small integers is a radix sort.
            return torch.from_numpy(np.argsort(self.slot.numpy(), kind="stable"))
        return torch.argsort(self.slot, stable=True)

    @cached_property
    def padded(self) -> tuple[Tensor, int]:
        """(N,) place of each row when every slot gets a block of the same length, and that length."""
        place, longest = places_in_blocks(self.slot.cpu().numpy(), np.asarray(self.sizes))
        return torch.from_numpy(place).to(self.slot.device), longest

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
        exact: whether ``classes`` holds just the classes that occur. This needs their number on the host, which is
            free on the CPU and a synchronisation elsewhere; the default is therefore exact on the CPU only.

    Example:
        >>> groups = group_rows(torch.tensor([7, 2, 7]), num_classes=10)
        >>> groups.classes.tolist(), groups.slot.tolist()
        ([2, 7], [1, 0, 1])
    """
    if targets.device.type == "cpu" and exact is not False:
        # The same bookkeeping in numpy: for a batch of a hundred rows the calls themselves are the cost.
        labels = targets.numpy()
        counts = np.bincount(labels, minlength=num_classes)
        (present,) = counts.nonzero()
        slot = targets
        if len(present) < num_classes:
            slot = torch.from_numpy(np.cumsum(counts > 0)[labels] - 1)
        return Groups(torch.from_numpy(present), slot, counts)
    if not exact and num_classes <= len(targets):
        return Groups(torch.arange(num_classes, device=targets.device), targets)
    seen = torch.zeros(num_classes, dtype=torch.bool, device=targets.device)
    seen[targets] = True
    if exact:
        classes = seen.nonzero().squeeze(1)
    else:
        classes = torch.argsort(seen.logical_not().to(torch.int8), stable=True)[: len(targets)]
    return Groups(classes, (seen.cumsum(0) - 1)[targets])


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
