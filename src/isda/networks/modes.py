"""Networks in eval mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_eval_mode"]


@contextmanager
def in_eval_mode(network: nn.Module) -> Iterator[None]:
    """A network is in eval mode while the block runs; then each of its modules is in its own mode again.

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
