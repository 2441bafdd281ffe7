"""Passes of a network that draw the same random numbers, such as dropout masks, as an earlier one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from isda.devices import on_host

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
        self._devices = [] if on_host(device) else [device]
        self._cpu = torch.get_rng_state()
        self._states = [torch.get_device_module(device).get_rng_state(device) for device in self._devices]

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Draw the same numbers again in the block, then go on as if it had drawn none."""
        kind = self._devices[0].type if self._devices else "cpu"
        with torch.random.fork_rng(self._devices, device_type=kind):
            torch.set_rng_state(self._cpu)
            for device, state in zip(self._devices, self._states, strict=True):
                torch.get_device_module(device).set_rng_state(state, device)
            yield
