"""The one question the core asks about devices: are these values in the host's memory, free to be read?

Everywhere else a read makes the host wait for all the work it has queued. docs/accelerators.md lists what that means.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["READ_EVERY", "on_host", "send"]

READ_EVERY = 100
"""Off the host, values that can wait (numbers of bad rows, sizes of variances) are read in every so many calls."""


def on_host(where: Tensor | torch.device) -> bool:
    """Whether a tensor, or the memory of a device, is the CPU's.

    Example:
        >>> on_host(torch.zeros(3)), on_host(torch.device("cuda"))
        (True, False)
    """
    return where.is_cpu if isinstance(where, Tensor) else where.type == "cpu"


def send(values: Tensor | Sequence[float] | float, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Values that the host has made, on a device, without waiting for what the device still has to do.

    torch.tensor(..., device=...) and ``.to(device)`` wait; a copy that does not is safe here because memory that is not
    pinned is read before the call returns.

    Example:
        >>> send([1.0, 2.0], torch.device("cpu"))
        tensor([1., 2.])
    """
    made = values if isinstance(values, Tensor) else torch.tensor(values)
    return made.to(device, dtype, non_blocking=True)
