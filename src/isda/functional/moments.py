"""Class-conditional first and second moments of a stream of features, eqs. (1) to (3) of the paper.

The state of a class is its count n, its mean and its scatter M2 = n * Sigma. A batch with m rows of the class, batch
mean b and centred rows Xc changes it by

    M2 += Xc' Xc + (n m / (n + m)) (b - mean)(b - mean)',   mean += (b - mean) m / (n + m),   n += m,

which is the paper's update without dividing and multiplying again. With d = b - mean the change of M2 equals Z'Z for
the m rows z_i = x_i - mean - (1 - sqrt(n / (n + m))) d: one GEMM per class, and nothing cancels. Any split or order of
the same stream gives the same result.

The mean is kept as ``origin + offset``, where the origin is the first batch mean of the class: features of mean 1e4 and
standard deviation 1 then lose nothing to rounding in float32, and no float64 is needed on the device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isda.functional.grouping import Groups, chunks


def absorb_means(
    features: Tensor,
    groups: Groups,
    old: Tensor,
    new: Tensor,
    origin: Tensor,
    offset: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Update the means in place and return the (N, A) rows Z whose outer products the scatter has to grow by.

    Args:
        features: (N, A) in the dtype of the statistics.
        groups: the rows by class.
        old: (K,) effective number of features seen so far, per slot.
        new: (K,) number of rows per slot.
        origin: (C, A) fixed part of the mean; set for classes seen for the first time.
        offset: (C, A) moving part of the mean; updated in place.
        mask: (N,) False for rows that hold zeros and do not count, or None.
    """
    classes, slot = groups.classes, groups.slot
    divide, share, pull = _factors(old, new, features.dtype)
    rows = features - _origins(features, groups, divide, old, origin).index_select(0, slot)
    rows -= offset.index_select(0, classes).index_select(0, slot)
    if mask is not None:
        rows *= mask.unsqueeze(1)
    distance = _slot_sum(rows, slot, len(classes)).mul_(divide)
    offset.index_add_(0, classes, distance * share)
    rows -= distance.mul_(pull).index_select(0, slot)
    if mask is not None:
        rows *= mask.unsqueeze(1)
    return rows


def _factors(old: Tensor, new: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """(K, 1) factors 1/m, m/(n+m) and 1 - sqrt(n/(n+m)); in numpy on the CPU, where the calls are the cost."""
    if old.device.type == "cpu":
        n, m = old.numpy(), new.numpy()
        share = m / np.maximum(n + m, 1)
        table = torch.from_numpy(np.stack([1 / np.maximum(m, 1), share, share / (1 + np.sqrt(1 - share))])).to(dtype)
    else:
        size = new.to(dtype)
        part = size / (old.to(dtype) + size).clamp_min(1)
        table = torch.stack([size.clamp_min(1).reciprocal(), part, part / (1 + (1 - part).sqrt())])
    first, second, third = table.unsqueeze(2).unbind(0)
    return first, second, third


def _origins(features: Tensor, groups: Groups, divide: Tensor, old: Tensor, origin: Tensor) -> Tensor:
    """(K, A) origins of the classes in the batch; a class seen for the first time gets its batch mean."""
    known = origin.index_select(0, groups.classes)
    if features.device.type == "cpu" and old.numpy().all():
        return known
    # A slot without rows that count (see Groups) has a batch sum of zero and keeps a zero origin.
    batch = _slot_sum(features, groups.slot, len(groups.classes)) * divide
    origins = torch.where((old == 0).unsqueeze(1), batch, known)
    origin.index_copy_(0, groups.classes, origins)
    return origins


def _slot_sum(rows: Tensor, slot: Tensor, length: int) -> Tensor:
    if rows.device.type == "cpu" and rows.numel() > 2**20 and len(rows) > 8 * length:
        # Many rows per class: a product with the indicator matrix uses every core, index_add_ only one.
        indicator = torch.zeros(length, len(rows), dtype=rows.dtype)
        indicator[slot, torch.arange(len(rows))] = 1
        return indicator @ rows
    return rows.new_zeros(length, rows.shape[1]).index_add_(0, slot, rows)


def add_outer_products(scatter: Tensor, rows: Tensor, groups: Groups, *, on_host: bool | None = None) -> None:
    """``scatter[c] += sum of z z'`` over the rows z of class c, in place: one GEMM per class.

    Args:
        scatter: (C, A, A), updated in place.
        rows: (N, A).
        groups: the rows by class.
        on_host: use the sizes of the groups, which are free on the CPU, or run batched products with masked rows that
            need no synchronisation. Default: by device and by how many rows there are.
    """
    if on_host is None:
        # Masking multiplies the arithmetic by K; beyond this a single wait for the device is the cheaper evil.
        on_host = rows.device.type == "cpu" or len(groups.classes) * len(rows) > 2**17
    if not on_host:
        _add_masked(scatter, rows, groups)
        return
    for index, part in zip(groups.classes.tolist(), rows[groups.order].split(groups.sizes), strict=True):
        scatter[index].addmm_(part.t(), part)


def _add_masked(scatter: Tensor, rows: Tensor, groups: Groups) -> None:
    """No sizes needed: every class sees all rows, those of other classes as zeros, in chunks of classes."""
    length = len(groups.classes)
    for part in chunks(length, rows.numel() * rows.element_size()):
        slots = torch.arange(part.start, part.stop, device=rows.device)
        masked = rows * (groups.slot == slots.unsqueeze(1)).unsqueeze(2)
        scatter.index_add_(0, groups.classes[part], masked.mT @ masked)


def add_squares(scatter: Tensor, rows: Tensor, groups: Groups) -> None:
    """``scatter[c] += sum of z * z`` over the rows z of class c, in place; scatter is (C, A)."""
    scatter.index_add_(0, groups.classes, _slot_sum(rows.square(), groups.slot, len(groups.classes)))
