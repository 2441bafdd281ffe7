"""Tensors on devices: whether values may be read without waiting, copies that do not wait, eval mode for a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
    tensor = values if isinstance(values, Tensor) else torch.tensor(values)
    return tensor.to(device, dtype, non_blocking=True)


@contextmanager
def in_eval_mode(network: nn.Module) -> Iterator[None]:
    """Put a network into eval mode for a block, then restore the mode of each of its modules.

    Example:
        >>> network = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with in_eval_mode(network):
        ...     network[0].training
        False
        >>> [module.training for module in network]
        [True, False]
    """
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
