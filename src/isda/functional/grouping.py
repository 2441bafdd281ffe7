"""Rows of a batch grouped by class, and the bounded workspace in which they are processed.

Everything ISDA needs depends on the class of a sample, never on the sample itself, so the work is done once per class
that occurs and then gathered to the rows. `Tiles` serves devices on which only the device knows the size of a group:
every group fills all of its tiles of length B but one, so the host knows the largest number of tiles that N rows need.
`Scratch` reuses memory on the CPU, where mapping fresh pages costs more than the arithmetic on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from isda._utils.devices import on_host

WORKSPACE_BYTES = 32 * 2**20
"""Upper limit of any temporary that would otherwise grow like rows x classes x features."""

CACHE_BYTES = 4 * 2**20
"""On the CPU, a temporary of this size is written and read again before it leaves the cache."""

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

    # Not cached_property, whose lock no compiler follows.
    @property
    def classes(self) -> Tensor:
        """(K,) class indices; see above."""
        if self._classes is None:
            self._classes = torch.arange(self._num_classes, device=self.labels.device)
        return self._classes

    @property
    def slot(self) -> Tensor:
        """(N,) position of each row's class in ``classes``."""
        if self._slot is None:
            labels = self.labels
            self._slot = labels if self.complete else torch.arange(len(labels), device=labels.device)
        return self._slot

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


def chunks(length: int, row_bytes: int, limit: int | None = None) -> Iterator[slice]:
    """Slices that cover ``range(length)`` such that each holds at most ``WORKSPACE_BYTES``, or ``limit`` if smaller."""
    step = rows_per_chunk(row_bytes)
    if limit is not None:
        step = min(step, max(1, limit // max(1, row_bytes)))
    if 0 < length <= step:  # without a loop, whose length a compiled graph would be bound to
        yield slice(0, length)
        return
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def join_chunks(parts: list[Tensor]) -> Tensor:
    """The results of ``chunks`` as one tensor; a single one without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class Tiles:
    """The places of N rows in tiles.

    Args:
        index: (N,) the group of each row, 0..G-1.
        num_groups: G.

    Attributes:
        length: B, about the number of rows per group.
        number: of tiles; those that are left over stay empty.
        place: (N,) the place of each row, tile * B + position.
        owner: (number,) the group of each tile.

    Example:
        >>> tiles = Tiles(torch.tensor([1, 0, 1, 1]), num_groups=2)
        >>> tiles.length, tiles.place.tolist(), tiles.owner.tolist()
        (2, [2, 0, 3, 4], [0, 1, 1, 1])
    """

    def __init__(self, index: Tensor, num_groups: int) -> None:
        rows, device = index.shape[0], index.device
        occurring = min(num_groups, rows)
        self.length = max(1, rows // occurring)
        self.number = occurring + rows // self.length
        ordered, order = torch.sort(index, stable=True)
        first_row = torch.searchsorted(ordered, torch.arange(num_groups + 1, device=device))
        tiles = (first_row.diff() + self.length - 1).div(self.length, rounding_mode="floor")
        last_tile = tiles.cumsum(0)
        # The rows of a group follow each other from the first place of its first tile.
        shift = (last_tile - tiles) * self.length - first_row[:-1]
        places = torch.arange(rows, device=device) + shift.index_select(0, ordered)
        self.place = torch.empty_like(order).index_copy_(0, order, places)
        owner = torch.searchsorted(last_tile, torch.arange(self.number, device=device), right=True)
        self.owner = owner.clamp_max(num_groups - 1)

    def fill(self, rows: Tensor) -> Tensor:
        """(number, B, D) the rows (N, D) in their places, zeros elsewhere."""
        blank = rows.new_zeros(self.number * self.length, rows.shape[1])
        return blank.index_copy(0, self.place, rows).view(self.number, self.length, -1)

    def product(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """(N, E) each row (N, D) times the matrix (G, D, E) of its group, through a bounded workspace."""
        filled = self.fill(rows)
        each = matrices[0].numel() * rows.element_size()
        parts = [filled[part] @ matrices.index_select(0, self.owner[part]) for part in chunks(self.number, each)]
        return torch.cat(parts).flatten(0, 1).index_select(0, self.place)

    def add_outer_products(self, scatter: Tensor, rows: Tensor) -> None:
        """``scatter[g] += sum of z z'`` over the rows z (N, D) of group g, in place; scatter is (G, D, D)."""
        filled = self.fill(rows)
        for part in chunks(self.number, scatter[0].numel() * rows.element_size()):
            scatter.index_add_(0, self.owner[part], filled[part].mT @ filled[part])


_spare: dict[torch.dtype, Tensor] = {}


class Scratch:
    """Uninitialised memory of a given shape, handed back for reuse when the object dies.

    Use ``.tensor`` only while the object is alive. One buffer per dtype is kept back, the largest seen; requests
    are bounded by WORKSPACE_BYTES.
    """

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        size = math.prod(shape)
        buffer = _spare.pop(like.dtype, None) if on_host(like) else None
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(shape, dtype=like.dtype, device=like.device)
        self._buffer = buffer
        self.tensor = buffer if buffer.shape == shape else buffer.view(-1)[:size].view(shape)

    def __del__(self) -> None:
        buffer = getattr(self, "_buffer", None)
        # Memory made in inference mode could not be written to outside of it.
        if buffer is not None and on_host(buffer) and not buffer.is_inference():
            other = _spare.get(buffer.dtype)
            if other is None or other.numel() < buffer.numel():
                _spare[buffer.dtype] = buffer


def frozen(value: Tensor) -> Tensor:
    """A value read from a buffer that the same compiled graph changes, for use by its backward pass.

    The compiler would compute it once more in the backward pass, when the buffer has changed.
    """
    return torch.ops.isda.frozen(value) if torch.compiler.is_compiling() else value


class UnchangedBuffers:
    """Remembers the state of buffers that a backward pass will read again, and refuses to go on if they moved."""

    def __init__(self, *buffers: Tensor) -> None:
        # In a graph the compiler keeps the order of reads and writes.
        self._seen = [] if torch.compiler.is_compiling() else [(buffer, buffer._version) for buffer in buffers]

    def check(self) -> None:
        """Raise RuntimeError if a buffer was changed since."""
        if any(buffer._version != version for buffer, version in self._seen):
            raise RuntimeError(
                "the covariance statistics were updated between a forward pass and its backward pass, which has to "
                "read them again at this size; call backward() before the next training forward"
            )
