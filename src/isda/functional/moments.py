"""Class-conditional first and second moments of a stream of features, eqs. (1) to (3) of the paper.

The state of a class is its count n, its mean and its scatter M2 = n * Sigma. A batch with m rows of the class, batch
mean b and centred rows Xc changes it by

    M2 += Xc' Xc + (n m / (n + m)) (b - mean)(b - mean)',   mean += (b - mean) m / (n + m),   n += m,

which is the paper's update without dividing and multiplying again. With d = b - mean the change of M2 equals Z'Z for
the m rows z_i = x_i - mean - (1 - sqrt(n / (n + m))) d: one GEMM per class, and nothing cancels. Any split or order of
the same stream gives the same result.

The functions are the CPU's; isda.functional.device_moments has those of every other device.

The mean is kept as ``origin + offset``, where the origin is the first batch mean of the class: features of mean 1e4 and
standard deviation 1 then lose nothing to rounding in float32, and no float64 is needed on the device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isda.devices import on_host
from isda.functional.grouping import Groups

__all__ = ["absorb_means", "add_outer_products", "add_squares"]


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
