"""What can end a run early: a polite signal, or a loss that is no number."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import Tensor

from isda.devices import on_host
from isda.engine.processes import Processes

__all__ = ["FiniteLoss", "NonFiniteLoss", "Stop", "Stopped", "raise_stopped", "remember_signals", "stop_on_signals"]


class Stopped(Exception):
    """The run was asked to stop, saved a checkpoint and can be resumed.

    Args:
        message: what happened.
        name: of the signal that asked.
    """

    def __init__(self, message: str, name: str = "SIGTERM") -> None:
        super().__init__(message)
        self.signal = signal.Signals[name]

    @property
    def status(self) -> int:
        """What the process ends with, as a shell would report it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.signal


class NonFiniteLoss(ValueError):
    """The loss became infinite or not a number."""


class Stop:
    """Whether a signal has asked the run to stop."""

    requested: str | None = None
    """The signal's name. On the class: one that came between two runs, see `remember_signals`."""


def remember_signals() -> None:
    """In a process that makes one run after the other: keep a SIGTERM that comes between two runs for the next.

    Ending there and then could leave the queue that the next run comes from locked, for all other processes as well.
    SIGINT is ignored: a Ctrl-C in the terminal reaches every process of the group, and the parent decides.
    """

    def note(number: int, frame: FrameType | None) -> None:
        Stop.requested = signal.Signals(number).name

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def raise_stopped(pass_on: Callable[[], None]) -> Iterator[None]:
    """In a process whose runs are made by others: turn SIGTERM and SIGINT into `Stopped`, after passing them on.

    Args:
        pass_on: asks the others to save and stop.
    """

    def end(number: int, frame: FrameType | None) -> None:
        pass_on()
        name = signal.Signals(number).name
        raise Stopped(f"stopped by {name}; the runs at hand are saved", name)

    caught = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, end) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Turn SIGTERM and SIGINT into a request that the loop honours after the step at hand.

    A second SIGINT (Ctrl-C) stops at once. Signals can be caught in the main thread only; elsewhere nothing changes.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and stop.requested:
            raise KeyboardInterrupt
        stop.requested = signal.Signals(number).name

    before = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class FiniteLoss:
    """Remembers, on the device, the first step whose loss was not finite.

    Reading that makes a GPU wait, so it is read on the CPU only after each step, elsewhere before each checkpoint and
    at the end of each epoch: a checkpoint never holds weights that come after a bad loss.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.first_bad = torch.full((), -1, dtype=torch.int64, device=processes.device)

    def look(self, loss: Tensor, step: int) -> None:
        """Take note of the loss of a step."""
        bad = ~loss.detach().isfinite() & (self.first_bad < 0)
        self.first_bad.masked_fill_(bad, step)
        if on_host(self.processes.device) and self.processes.world == 1:
            self.check()

    def check(self) -> None:
        """Raise NonFiniteLoss if any process has seen one. All processes must call it together."""
        own = self.own()
        (bad,) = self.processes.any(own is not None)
        if bad:
            raise own or _non_finite("in another process")

    def own(self) -> NonFiniteLoss | None:
        """The error if this process has seen a loss that was not finite, or None. Reads the device."""
        step = int(self.first_bad)
        return _non_finite(f"in step {step}") if step >= 0 else None


def _non_finite(where: str) -> NonFiniteLoss:
    return NonFiniteLoss(f"the loss became infinite or not a number {where}; try a smaller lr or lambda_0")
