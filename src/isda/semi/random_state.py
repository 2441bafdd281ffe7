"""Passes of a network that draw the same random numbers, such as dropout masks, as an earlier one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["RandomState"]


class RandomState:
    """The state of torch's generators (CPU and one device) when this was made.

    Example:
        >>> state = RandomState(torch.device("cpu"))
        >>> first = torch.rand(3)
        >>> with state.replayed():
        ...     again = torch.rand(3)
        >>> torch.equal(first, again)
        True
    """

    def __init__(self, device: torch.device) -> None:
        self._devices = [device] if device.type == "cuda" else []
        self._cpu = torch.get_rng_state()
        self._cuda = [torch.cuda.get_rng_state(device) for device in self._devices]

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Draw the same numbers again in the block, then go on as if it had drawn none."""
        with torch.random.fork_rng(self._devices):
            torch.set_rng_state(self._cpu)
            for device, state in zip(self._devices, self._cuda, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
