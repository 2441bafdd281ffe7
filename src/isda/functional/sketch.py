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

    Args:
        sketch: (G, 2r, A).
        fill: (G,) number of rows in use per sketch.
        rows: (N, A).
        index: (N,) which sketch each row belongs to.
    """
    keep = rows.square().sum(1) > 0
    rows, index = rows[keep], index[keep]
    order = torch.argsort(index, stable=True)
    rows, index = rows[order], index[order]
    incoming = torch.bincount(index, minlength=len(sketch))
    within = torch.arange(len(index), device=index.device) - (incoming.cumsum(0) - incoming)[index]
    position = fill[index] + within
    length = fill + incoming
    overfull = length > sketch.shape[1]
    simple = ~overfull[index]
    sketch[index[simple], position[simple]] = rows[simple]
    fill.copy_(length)
    _append_and_shrink(sketch, fill, rows[~simple], index[~simple], position[~simple])


def _append_and_shrink(sketch: Tensor, fill: Tensor, rows: Tensor, index: Tensor, position: Tensor) -> None:
    if len(rows) == 0:
        return
    members, slot = torch.unique_consecutive(index, return_inverse=True)
    longest, (capacity, dim) = int(fill[members].max()), sketch.shape[1:]
    rank = capacity // 2
    spared = 3 * rank // 4  # the rest, r / 4 rows, is free again: sparing more would mean shrinking more often
    for part in chunks(len(members), longest * dim * rows.element_size()):
        here = (slot >= part.start) & (slot < part.stop)
        stack = rows.new_zeros(part.stop - part.start, longest, dim)
        stack[:, :capacity] = sketch[members[part]]
        stack[slot[here] - part.start, position[here]] = rows[here]
        sketch[members[part]] = 0
        sketch[members[part], : rank + spared] = shrink(stack, rank, spared)
    fill[members] = rank + spared
