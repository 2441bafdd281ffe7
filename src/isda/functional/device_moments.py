"""The update of isda.functional.moments where the host must not ask how many rows a class has.

Tables over all classes instead of the classes that occur, and a number of kernels that depends on no value.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isda.functional.grouping import WORKSPACE_BYTES, Groups, chunks
from isda.functional.tiles import Tiles

__all__ = ["Absorbed", "absorb_moments", "add_outer_products_of"]


class Absorbed(NamedTuple):
    """What an update of the means leaves to do."""

    rows: Tensor
    """(N, A) the rows Z whose outer products the scatter has to grow by, zero where the mask is False."""
    new: Tensor
    """(G,) int64, how many of them each matrix gets."""
    share: Tensor
    """(G,) 1 / (n + m), at most 1."""


def absorb_moments(
    features: Tensor,
    index: Tensor,
    mask: Tensor | None,
    seen: Tensor,
    origin: Tensor,
    offset: Tensor,
    *,
    all_seen: bool = False,
) -> Absorbed:
    """Update the means in place; see isda.functional.moments for the equations.

    Args:
        features: (N, A) in the dtype of the statistics.
        index: (N,) the matrix of each row, 0..G-1.
        mask: (N,) False for rows that do not count, whatever they hold, or None.
        seen: (G,) effective number of features seen so far.
        origin: (G, A) fixed part of the mean; set for classes seen for the first time.
        offset: (G, A) moving part of the mean.
        all_seen: whether the host knows that every class has been seen: no origin is to be set then.
    """
    ones = torch.ones_like(index) if mask is None else mask.to(torch.int64)
    new = torch.zeros_like(seen, dtype=torch.int64).index_add_(0, index, ones)
    share = torch.ones((), dtype=features.dtype) / (seen + new).clamp_min(1)
    # (1 - sqrt(n / (n + m))) / m, which S = m (b - mean) is to be multiplied with.
    pull = share / (1 + (seen * share).sqrt())
    rows = features - origin.index_select(0, index)
    if mask is not None:
        rows = torch.where(mask.unsqueeze(1), rows, 0)
    total = torch.zeros_like(offset).index_add_(0, index, rows).addcmul_(new.unsqueeze(1), offset, value=-1)
    centre = torch.addcmul(offset, total, pull.unsqueeze(1)).index_select(0, index)
    if all_seen:
        offset.addcmul_(total, share.unsqueeze(1))
    else:
        first = share * (seen == 0)
        origin.addcmul_(total, first.unsqueeze(1))
        offset.addcmul_(total, (share - first).unsqueeze(1))
    rows = rows.sub_(centre) if mask is None else rows.addcmul_(centre, mask.unsqueeze(1), value=-1)
    return Absorbed(rows, new, share)


def add_outer_products_of(scatter: Tensor, rows: Tensor, groups: Groups) -> None:
    """``scatter[c] += sum of z z'`` over the rows z (N, A) of class c, in place; scatter is (C, A, A)."""
    if len(scatter) == 1:
        scatter[0].addmm_(rows.t(), rows)
    elif not groups.complete:
        # More classes than rows: there is nothing to gather, every row has a class to itself.
        for part in chunks(len(rows), scatter[0].numel() * rows.element_size()):
            here = rows[part]
            scatter.index_add_(0, groups.labels[part], here.unsqueeze(2) * here.unsqueeze(1))
    elif len(scatter) * rows.numel() * rows.element_size() <= WORKSPACE_BYTES:
        # Every class sees all rows, those of other classes as zeros: one product in place, no matrix is copied.
        mine = rows * (groups.slot == groups.classes.unsqueeze(1)).unsqueeze(2)
        scatter.baddbmm_(mine.mT, mine)
    else:
        Tiles(groups.slot, len(scatter)).add_outer_products(scatter, rows)
