"""The processes of a run (one, or those started by torchrun), signal handling, and non-finite losses."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from isda._utils.devices import on_host

# Seconds between two looks whether the process that started this one is still there.
PARENT_POLL_SECONDS = 1.0
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True)
class Processes:
    """Who this process is among those that train together."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    @property
    def device_name(self) -> str:
        """The device as its maker calls it, where torch knows."""
        maker = getattr(torch.get_device_module(self.device), "get_device_name", None)
        return self.device.type if maker is None or on_host(self.device) else str(maker(self.device))

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network with gradients averaged over processes; itself where there is one."""
        if self.world == 1:
            return network
        devices = None if on_host(self.device) else [self.device]
        # Batch norm keeps its running figures per process, and those of the first count: see `share_buffers`.
        return DistributedDataParallel(network, device_ids=devices, broadcast_buffers=False)

    def share_buffers(self, network: nn.Module) -> None:
        """Give every process the first one's running figures of batch norm, before they evaluate together."""
        if self.world > 1:
            for buffer in network.buffers():
                dist.broadcast(buffer, 0)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average the gradients of parameters outside the wrapped network, such as those of a method."""
        if self.world > 1:
            for parameter in parameters:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= self.world

    def add_up(self, sums: Tensor) -> None:
        """Replace a tensor by its sum over processes."""
        if self.world > 1:
            dist.all_reduce(sums)

    def collect(self, tensor: Tensor) -> Tensor:
        """(world, ...) the tensor of each process, in the order of their ranks."""
        if self.world == 1:
            return tensor.unsqueeze(0)
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        dist.all_gather(parts, tensor)
        return torch.stack(parts)

    def gather(self, records: list[Any]) -> list[Any]:
        """The records of all processes, in the order of their ranks."""
        if self.world == 1:
            return records
        parts: list[Any] = [None] * self.world
        dist.all_gather_object(parts, records)
        return [record for part in parts for record in part]

    def own(self, collected: Tensor) -> Tensor:
        """This process's part of what `collect` gave; where there were other processes, the first takes the sum."""
        if len(collected) == self.world:
            return collected[self.rank].to(self.device)
        total = collected.sum(0).to(self.device)
        return total if self.first else torch.zeros_like(total)

    def any(self, *flags: bool) -> list[bool]:
        """Whether each flag is up in any process: all processes then agree. Waits for the others."""
        if self.world == 1:
            return list(flags)
        raised = torch.tensor(flags, dtype=torch.int32, device=self.device)
        dist.all_reduce(raised, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in raised.tolist()]

    def wait(self) -> None:
        """Return once every process has come here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def join_processes(device: str = "auto") -> Iterator[Processes]:
    """Join the processes of torchrun, if it started this one, and leave them at the end.

    While the block runs, an accelerator gives the same bits for the same run.

    Args:
        device: "auto" for this process's accelerator if there is one, else the CPU; or a torch device.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    with _deterministic(chosen):
        if world == 1:
            yield Processes(0, 1, chosen)
            return
        dist.init_process_group(_backend(chosen))
        threading.Thread(target=stop_with_parent, args=(os.getppid(),), daemon=True).start()
        try:
            yield Processes(dist.get_rank(), world, chosen)
            # Without it a process that leaves early can take the others down after all work is done.
            dist.barrier()
        finally:
            dist.destroy_process_group()


def stop_with_parent(parent: int) -> None:
    """When torchrun has gone without a word, ask this process to save and stop, as a signal would."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _device(name: str, local_rank: int) -> torch.device:
    try:
        device = torch.device(_accelerator() if name == "auto" else name)
        if not on_host(device):
            device = torch.device(device.type, local_rank if device.index is None else device.index)
            torch.get_device_module(device).set_device(device)
        torch.empty(1, device=device).tolist()
    except (RuntimeError, AssertionError, NotImplementedError, AttributeError) as error:
        raise ValueError(f"device must be auto, cpu or one that torch finds here, got {name!r}") from error
    return device


def _accelerator() -> str:
    """The kind of accelerator that torch finds here, or the CPU."""
    if hasattr(torch, "accelerator"):
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if found is None else found.type
    return "cuda" if torch.cuda.is_available() else "cpu"  # torch before 2.6


def _backend(device: torch.device) -> str:
    """What processes talk through: nccl between CUDA devices, gloo between CPUs."""
    if hasattr(dist, "get_default_backend_for_device"):
        return dist.get_default_backend_for_device(device)
    return "nccl" if device.type == "cuda" else "gloo"  # torch before 2.6


@contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    """Have an accelerator give the same bits for the same run; it warns of operations that cannot.

    The switches belong to the whole process, and are as they were afterwards; the CPU needs none.
    """
    if on_host(device):
        yield
        return
    benchmark = torch.backends.cudnn.benchmark
    enabled = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get(_WORKSPACE)
    os.environ.setdefault(_WORKSPACE, ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        torch.backends.cudnn.benchmark = benchmark
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)


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


class StopRequest:
    """Whether a signal has asked the run to stop."""

    requested: str | None = None
    """The signal's name. On the class: one that came between two runs, see `remember_signals`."""


def remember_signals() -> None:
    """In a process that makes one run after the other: keep a SIGTERM that comes between two runs for the next.

    Ending there and then could leave the queue that the next run comes from locked, for all other processes as well.
    SIGINT is ignored: a Ctrl-C in the terminal reaches every process of the group, and the parent decides.
    """

    def note(number: int, frame: FrameType | None) -> None:
        StopRequest.requested = signal.Signals(number).name

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
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGTERM and SIGINT into a request that the loop honours after the step at hand.

    A second SIGINT (Ctrl-C) stops at once. Signals can be caught in the main thread only; elsewhere nothing changes.
    """
    stop = StopRequest()
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

    def __init__(self, processes: Processes, hint: str = "try a smaller lr") -> None:
        self.processes, self.hint = processes, hint
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
            raise own or self._error("in another process")

    def own(self) -> NonFiniteLoss | None:
        """The error if this process has seen a loss that was not finite, or None. Reads the device."""
        step = int(self.first_bad)
        return self._error(f"in step {step}") if step >= 0 else None

    def _error(self, where: str) -> NonFiniteLoss:
        return NonFiniteLoss(f"the loss became infinite or not a number {where}; {self.hint}")
