"""Class-conditional first and second moments of a stream of features, eqs. (1) to (3) of the paper.

The state of a class is its count n, its mean and its scatter M2 = n * Sigma. A batch with m rows of the class, batch
mean b and centred rows Xc changes it by

    M2 += Xc' Xc + (n m / (n + m)) (b - mean)(b - mean)',   mean += (b - mean) m / (n + m),   n += m,

which is the paper's update without dividing and multiplying again. With d = b - mean the change of M2 equals Z'Z for
the m rows z_i = x_i - mean - (1 - sqrt(n / (n + m))) d: one GEMM per class, and nothing cancels. Any split or order of
the same stream gives the same result. The mean is kept as ``origin + offset``, where the origin is the first batch mean
of the class: features of mean 1e4 and standard deviation 1 then lose nothing to rounding in float32.

There are three implementations: `absorb_means` and `add_outer_products` for the CPU; `Blocks` for batches on the CPU in
which most classes occur about equally often (one padded batched product for all classes); and the ``*_on_device``
functions, whose number of kernels depends on no value, so that the host does not wait.

Shrinkage intensities are those of Ledoit and Wolf (2004): (1 - r) S + r T has the least expected squared error for
r = E|S - Sigma|^2 / E|S - T|^2, and for Gaussian features E|S - Sigma|^2 = (tr Sigma^2 + tr(Sigma)^2) / m at m degrees
of freedom, so that counts, traces and norms of the scatter suffice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from isda._utils.devices import in_graph, on_host
from isda.functional.grouping import LOOP_FROM_DIM, WORKSPACE_BYTES, Groups, Tiles, chunks, places_in_blocks


def absorb_means(
    features: Tensor,
    groups: Groups,
    old: Tensor,
    new: Tensor,
    origin: Tensor,
    offset: Tensor,
) -> Tensor:
    """Update the means in place and return the (N, A) rows Z whose outer products the scatter has to grow by.

    Args:
        features: (N, A) in the dtype of the statistics.
        groups: the rows by class.
        old: (K,) effective number of features seen so far, per slot.
        new: (K,) number of rows per slot, at least 1.
        origin: (C, A) fixed part of the mean; set for classes seen for the first time.
        offset: (C, A) moving part of the mean; updated in place.
    """
    classes, slot = groups.classes, groups.slot
    divide, share, pull = _factors(old, new, features.dtype)
    rows = features - _origins(features, groups, divide, old, origin).index_select(0, slot)
    rows -= offset.index_select(0, classes).index_select(0, slot)
    distance = _slot_sum(rows, slot, len(classes)).mul_(divide)
    offset.index_add_(0, classes, distance * share)
    rows -= distance.mul_(pull).index_select(0, slot)
    return rows


def _factors(old: Tensor, new: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """(K, 1) factors 1/m, m/(n+m) and 1 - sqrt(n/(n+m)); in numpy, because the calls are the cost."""
    n, m = old.numpy(), new.numpy()
    share = m / (n + m)
    table = torch.from_numpy(np.stack([1 / m, share, share / (1 + np.sqrt(1 - share))])).to(dtype)
    first, second, third = table.unsqueeze(2).unbind(0)
    return first, second, third


def _origins(features: Tensor, groups: Groups, divide: Tensor, old: Tensor, origin: Tensor) -> Tensor:
    """(K, A) origins of the classes in the batch; a class seen for the first time gets its batch mean."""
    known = origin.index_select(0, groups.classes)
    if old.numpy().all():
        return known
    batch = _slot_sum(features, groups.slot, len(groups.classes)) * divide
    origins = torch.where((old == 0).unsqueeze(1), batch, known)
    origin.index_copy_(0, groups.classes, origins)
    return origins


def _slot_sum(rows: Tensor, slot: Tensor, length: int) -> Tensor:
    if rows.numel() > 2**20 and len(rows) > 8 * length:
        # Many rows per class: a product with the indicator matrix uses every core, index_add_ only one.
        indicator = torch.zeros(length, len(rows), dtype=rows.dtype)
        indicator[slot, torch.arange(len(rows))] = 1
        return indicator @ rows
    return rows.new_zeros(length, rows.shape[1]).index_add_(0, slot, rows)


def add_outer_products(scatter: Tensor, rows: Tensor, groups: Groups) -> None:
    """``scatter[c] += sum of z z'`` over the rows z (N, A) of class c, in place: one GEMM per class."""
    for index, part in zip(groups.classes.tolist(), rows[groups.order].split(groups.sizes), strict=True):
        scatter[index].addmm_(part.t(), part)


def add_squares(scatter: Tensor, rows: Tensor, groups: Groups) -> None:
    """``scatter[c] += sum of z * z`` over the rows z of class c, in place; scatter is (C, A)."""
    if not on_host(rows):
        scatter.index_add_(0, groups.labels, rows.square())
        return
    scatter.index_add_(0, groups.classes, _slot_sum(rows.square(), groups.slot, len(groups.classes)))


_CALL = 2**22
"""Multiplications in the time that an update of one class on its own takes beside its product."""


class Blocks:
    """The rows of a batch as one block per class.

    Args:
        targets: (N,) class indices, all in 0..C-1, on the CPU.
        num_classes: C.
        sizes: (C,) number of rows per class, if they are known.

    Example:
        >>> blocks = Blocks(torch.tensor([1, 0, 1]), num_classes=2)
        >>> blocks.sizes, blocks.is_worthwhile(dim=8)
        (array([1, 2]), True)
    """

    def __init__(self, targets: Tensor, num_classes: int, sizes: np.ndarray | None = None) -> None:
        self._labels = targets.numpy()
        self.sizes = np.bincount(self._labels, minlength=num_classes) if sizes is None else sizes

    def is_worthwhile(self, dim: int) -> bool:
        """Whether they are worth their padding, and the matrices of classes that do not occur worth a visit."""
        classes, rows = len(self.sizes), len(self._labels)
        present = int(np.count_nonzero(self.sizes))
        dense = present == classes or (dim < LOOP_FROM_DIM and classes <= 2 * present)
        padded = classes * int(self.sizes.max())
        return dense and padded <= 4 * (rows + classes) and (padded - rows) * dim**2 <= classes * _CALL

    def absorb(self, features: Tensor, old: Tensor, origin: Tensor, offset: Tensor, scatter: Tensor) -> None:
        """Update the moments in place; see isda.functional.moments for the equations.

        Args:
            features: (N, A) in the dtype of the statistics.
            old: (C,) effective number of features seen so far.
            origin: (C, A) fixed part of the mean; set for classes seen for the first time.
            offset: (C, A) moving part of the mean.
            scatter: (C, A, A).
        """
        n, m, dim, dtype = old.numpy(), self.sizes, features.shape[1], features.numpy().dtype
        place, longest = places_in_blocks(self._labels, m)
        member = np.zeros((len(m), longest, 1), dtype)
        member.reshape(-1)[place] = 1
        inside = torch.from_numpy(member)
        blocks = features.new_zeros(member.size, dim).index_copy_(0, torch.from_numpy(place), features)
        blocks = blocks.view(len(m), -1, dim)
        if not n.all():
            first = torch.from_numpy((n == 0) & (m > 0)).unsqueeze(1)
            size = torch.from_numpy(np.maximum(m, 1)).unsqueeze(1)
            origin.copy_(torch.where(first, blocks.sum(1) / size, origin))

        # m (b - mean), and what it is to be multiplied with: 1 / (n + m) and (1 - sqrt(n / (n + m))) / m.
        share = 1 / np.maximum(n + m, 1)
        factors = np.empty((2, len(m), 1), dtype)
        factors[:, :, 0] = share, share / (1 + np.sqrt(1 - m * share))
        step, pull = torch.from_numpy(factors)
        blocks.addcmul_(inside, origin.unsqueeze(1), value=-1).addcmul_(inside, offset.unsqueeze(1), value=-1)
        distance = blocks.sum(1)
        offset.addcmul_(distance, step)
        blocks.addcmul_(inside, distance.mul_(pull).unsqueeze(1), value=-1)
        scatter.baddbmm_(blocks.mT, blocks)


class AbsorbedRows(NamedTuple):
    """What an update of the means leaves to do."""

    rows: Tensor
    """(N, A) the rows Z whose outer products the scatter has to grow by, zero where the mask is False."""
    new: Tensor
    """(G,) int64, how many of them each matrix gets."""
    share: Tensor
    """(G,) 1 / (n + m), at most 1."""


def absorb_means_on_device(
    features: Tensor,
    index: Tensor,
    mask: Tensor | None,
    seen: Tensor,
    origin: Tensor,
    offset: Tensor,
    *,
    all_seen: bool = False,
) -> AbsorbedRows:
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
    number = (seen + new).clamp_min(1)
    # In a graph no tensor of the CPU may take part.
    share = 1 / number.to(features.dtype) if in_graph() else torch.ones((), dtype=features.dtype) / number
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
    return AbsorbedRows(rows, new, share)


def add_outer_products_on_device(scatter: Tensor, rows: Tensor, groups: Groups) -> None:
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


def shrinkage_to_target(freedom: Tensor, trace: Tensor, square: Tensor, distance: Tensor) -> Tensor:
    """R = (tr S^2 + tr(S)^2) / (m |S - T|^2), at most 1; 1 for a matrix that is not known at all.

    Args:
        freedom: m, the degrees of freedom of S: the number of its features less one; any shape.
        trace: tr S.
        square: tr S^2 = |S|^2, in Frobenius's norm.
        distance: |S - T|^2.

    Example:
        >>> few, many = torch.tensor([3.0, 300.0])
        >>> for m in (few, many):
        ...     print(round(float(shrinkage_to_target(m, torch.tensor(2.0), torch.tensor(2.0), torch.tensor(1.0))), 3))
        1.0
        0.02
    """
    return _shrinkage_ratio(square + trace.square(), freedom, distance)


def shrinkage_to_diagonal(freedom: Tensor, trace: Tensor, square: Tensor, diagonal_square: Tensor) -> Tensor:
    """R = sum_{i != j} (s_ii s_jj + s_ij^2) / (m sum_{i != j} s_ij^2), at most 1: how far correlations are noise.

    Args:
        freedom: m, the degrees of freedom of S; any shape.
        trace: tr S.
        square: |S|^2, in Frobenius's norm.
        diagonal_square: sum_i s_ii^2.
    """
    apart = (square - diagonal_square).clamp_min(0)
    return _shrinkage_ratio((trace.square() - diagonal_square).clamp_min(0) + apart, freedom, apart)


def _shrinkage_ratio(error: Tensor, freedom: Tensor, distance: Tensor) -> Tensor:
    known = (freedom > 0) & (distance > 0)
    below = torch.where(known, freedom * distance, torch.ones_like(distance))
    return torch.where(known, error / below, torch.ones_like(distance)).clamp(0, 1)
