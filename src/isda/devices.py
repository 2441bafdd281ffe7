"""The one question the core asks about devices: are these values in the host's memory, free to be read?

Everywhere else a read makes the host wait for all the work it has queued. docs/accelerators.md lists what that means.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["READ_EVERY", "on_host"]

READ_EVERY = 100
"""Off the host, values that can wait (numbers of bad rows, sizes of variances) are read in every so many calls."""


def on_host(where: Tensor | torch.device) -> bool:
    """Whether a tensor, or the memory of a device, is the CPU's.

    Example:
        >>> on_host(torch.zeros(3)), on_host(torch.device("cuda"))
        (True, False)
    """
    return where.is_cpu if isinstance(where, Tensor) else where.type == "cpu"
