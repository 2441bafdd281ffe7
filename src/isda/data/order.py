"""The order in which an epoch visits its samples, a function of (seed, epoch): there is no state."""

from __future__ import annotations

import torch
from torch import Tensor

from isda.seeds import generator

__all__ = ["batch_order"]


def batch_order(indices: Tensor, batch_size: int, *, seed: int, epoch: int) -> Tensor:
    """(steps, batch_size) the samples of an epoch, shuffled, as full batches; what is left over is not used.

    Example:
        >>> batch_order(torch.arange(5), 2, seed=0, epoch=0).shape
        torch.Size([2, 2])
    """
    steps = len(indices) // batch_size
    shuffled = indices[torch.randperm(len(indices), generator=generator(seed, epoch))]
    return shuffled[: steps * batch_size].view(steps, batch_size)
