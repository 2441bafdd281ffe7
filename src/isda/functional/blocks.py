"""The update of isda.functional.moments for the everyday batch on the CPU, in a third of the calls.

Where most classes occur, about as often as each other, every class gets a block of rows of the same length, padded with
zeros. Means and scatter matrices of all classes then change in place, without picking and putting back those that
occur. A step of a small classifier takes a few milliseconds, in which every call counts.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isda.functional.grouping import LOOP_FROM_DIM, places_in_blocks

__all__ = ["Blocks"]

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
