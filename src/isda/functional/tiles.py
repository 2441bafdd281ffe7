"""Rows in tiles of one length, each of one group: products by group that ask the device for no size.

How many rows a group has is known to the device only; how many tiles of length B are enough for N rows of G groups is
known to the host: every group that occurs fills all of its tiles but one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isda.functional.grouping import chunks

__all__ = ["Tiles"]


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
