"""Frequent directions: a matrix sketch of few rows with a guaranteed error (Liberty, 2013; Ghashami et al., 2016).

A sketch B of a stream of rows X satisfies, in any order of the rows and with r directions that are shrunk,

    0 <= x' (X'X - B'B) x <= |X|_F^2 / (r + 1)      for every unit vector x.

Each time the sketch is full its weak directions lose the squared length of the first one dropped, and that is the error
made; r of them and the one dropped pay for it. Stronger directions need not be touched: sparing them keeps the bound
and halves the error on ordinary streams (the "parametrised" variant of Ghashami et al.).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isda.functional.grouping import chunks


def shrink(rows: Tensor, rank: int, spared: int = 0) -> Tensor:
    """Reduce rows to the ``spared`` strongest directions and ``rank`` more, shrunk by the first one dropped.

    Args:
        rows: (K, L, A) stacks of L rows; zero rows are allowed.
        rank: r, the directions that lose the squared length of the first one dropped.
        spared: s, the directions that keep their length; r + s is smaller than L.

    Returns:
        (K, s + r, A) with B'B = V diag(v_1, ..., v_s, v_{s+1} - d, ..., v_{s+r} - d) V' for the eigenvalues v of X'X in
        falling order and d = v_{s+r+1}.
    """
    kept_rows = rank + spared
    tall = rows.shape[1] > rows.shape[2]
    values, vectors = torch.linalg.eigh(rows.mT @ rows if tall else rows @ rows.mT)
    # With as many features or fewer there is nothing to drop: the missing directions count as zero.
    missing = max(0, kept_rows + 1 - values.shape[1])
    values, vectors = F.pad(values, (missing, 0)).clamp_min(0), F.pad(vectors, (missing, 0))[:, :, -kept_rows:]
    kept, dropped = values[:, -kept_rows:], values[:, -kept_rows - 1].unsqueeze(1)
    squared = torch.cat([kept[:, :rank] - dropped, kept[:, rank:]], dim=1)
    if tall:
        return (vectors * squared.sqrt().unsqueeze(1)).mT
    factor = (squared / kept.clamp_min(torch.finfo(rows.dtype).tiny)).sqrt()
    return (vectors * factor.unsqueeze(1)).mT @ rows


def append_rows(sketch: Tensor, fill: Tensor, rows: Tensor, index: Tensor) -> None:
    """Append each row to the sketch of its index, in place, shrinking the sketches that would overflow.

    Off the CPU the host waits once, to learn whether any would, and once more in `torch.linalg.eigh` if so.

    Args:
        sketch: (G, 2r, A).
        fill: (G,) number of rows in use per sketch.
        rows: (N, A).
        index: (N,) which sketch each row belongs to.
    """
    (num_sketches, capacity, dim), device = sketch.shape, rows.device
    # Rows of zeros belong to no sketch and come last.
    wanted = torch.where(rows.square().sum(1) > 0, index, num_sketches)
    ordered, order = torch.sort(wanted, stable=True)
    rows = rows.index_select(0, order)
    first = torch.searchsorted(ordered, torch.arange(num_sketches + 1, device=device))
    length = fill + first.diff()
    overfull = length > capacity
    counts = ordered < num_sketches
    owner = ordered.clamp_max(num_sketches - 1)
    position = fill.index_select(0, owner) - first.index_select(0, owner) + torch.arange(len(rows), device=device)
    # The one value that the host has to know: most batches fill no sketch, and then there is nothing to decompose.
    number, longest = torch.stack([overfull.sum(), length.max()]).tolist()
    members = torch.argsort(overfull.to(torch.int8), descending=True, stable=True)[:number]
    _append(sketch, rows, owner, position, counts & ~overfull.index_select(0, owner))
    fill.copy_(length)
    if not number:
        return
    rank = capacity // 2
    spared = 3 * rank // 4  # the rest, r / 4 rows, is free again: sparing more would mean shrinking more often
    slot = (overfull.cumsum(0) - 1).index_select(0, owner)
    waiting = counts & overfull.index_select(0, owner)
    for part in chunks(number, longest * dim * rows.element_size()):
        size, chosen = part.stop - part.start, members[part]
        stack = rows.new_zeros(size, longest, dim)
        stack[:, :capacity] = sketch.index_select(0, chosen)
        _append(stack, rows, slot - part.start, position, waiting & (slot >= part.start) & (slot < part.stop))
        shrunk = F.pad(shrink(stack, rank, spared), (0, 0, 0, capacity - rank - spared))
        sketch.index_copy_(0, chosen, shrunk)
    fill.masked_fill_(overfull, rank + spared)


def _append(stack: Tensor, rows: Tensor, owner: Tensor, position: Tensor, chosen: Tensor) -> None:
    """Put the chosen rows (N, A) into stack (K, L, A) at [owner, position], which holds zeros there, in place."""
    place = torch.where(chosen, owner * stack.shape[1] + position, 0)
    # Adding nothing to the first row instead of leaving a row out: the host need not know how many there are.
    stack.flatten(0, 1).index_add_(0, place, torch.where(chosen.unsqueeze(1), rows, 0))
