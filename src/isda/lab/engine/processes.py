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

from isda.lab.devices import on_host

# Seconds between two checks whether the parent process is alive.
PARENT_POLL_SECONDS = 1.0
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@dataclass(frozen=True)
class Processes:
    """The rank of this process among those that train together, and its device."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    @property
    def device_name(self) -> str:
        """The product name of the device, if torch knows it."""
        get_name = getattr(torch.get_device_module(self.device), "get_device_name", None)
        return self.device.type if get_name is None or on_host(self.device) else str(get_name(self.device))

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network with gradients averaged over processes; unchanged if there is one."""
        if self.world == 1:
            return network
        devices = None if on_host(self.device) else [self.device]
        # Batch norm keeps running statistics per process; those of the first are used: see `share_buffers`.
        return DistributedDataParallel(network, device_ids=devices, broadcast_buffers=False)

    def share_buffers(self, network: nn.Module) -> None:
        """Copy the first process's running statistics of batch norm to all, before an evaluation."""
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
        """This process's part of the result of `collect`; of another number of processes, the sum in the first."""
        if len(collected) == self.world:
            return collected[self.rank].to(self.device)
        total = collected.sum(0).to(self.device)
        return total if self.first else torch.zeros_like(total)

    def any(self, *flags: bool) -> list[bool]:
        """Whether each flag is set in any process. Waits for all processes."""
        if self.world == 1:
            return list(flags)
        maxima = torch.tensor(flags, dtype=torch.int32, device=self.device)
        dist.all_reduce(maxima, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in maxima.tolist()]

    def wait(self) -> None:
        """Wait for all processes."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def join_processes(device: str = "auto") -> Iterator[Processes]:
    """Join the processes of torchrun, if it started this one, and leave them at the end.

    Args:
        device: "auto" for this process's accelerator if there is one, else the CPU; or a torch device.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if world == 1:
        yield Processes(0, 1, chosen)
        return
    dist.init_process_group(_backend(chosen))
    threading.Thread(target=stop_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        yield Processes(dist.get_rank(), world, chosen)
        # A process that leaves early can make the others fail.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def stop_with_parent(parent: int) -> None:
    """Send this process SIGTERM, so that it saves and stops, when its parent has ended."""
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
    if hasattr(torch, "accelerator"):
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if device is None else device.type
    return "cuda" if torch.cuda.is_available() else "cpu"  # torch before 2.6


def _backend(device: torch.device) -> str:
    if hasattr(dist, "get_default_backend_for_device"):
        return dist.get_default_backend_for_device(device)
    return "nccl" if device.type == "cuda" else "gloo"  # torch before 2.6


@contextmanager
def deterministic_algorithms(device: torch.device, wanted: bool = True) -> Iterator[None]:
    """Use deterministic algorithms of an accelerator, with warnings where there are none; the CPU needs no switches."""
    if on_host(device) or not wanted:
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
    """The run was stopped by a signal, has saved a checkpoint and can be resumed.

    Args:
        message: of the error.
        name: of the signal.
    """

    def __init__(self, message: str, name: str = "SIGTERM") -> None:
        super().__init__(message)
        self.signal = signal.Signals[name]

    @property
    def status(self) -> int:
        """The exit status as a shell reports it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.signal


class NonFiniteLoss(ValueError):
    """The loss became NaN or infinite."""


class StopRequest:
    """A request to stop the run by a signal."""

    requested: str | None = None
    """The signal's name. On the class: of a signal between two runs, see `remember_signals`."""


def remember_signals() -> None:
    """In a process that executes several runs: keep a SIGTERM that comes between two runs for the next.

    Exiting at once could leave the queue of runs locked for all other processes. SIGINT is ignored: Ctrl-C in the
    terminal reaches every process of the group, and the parent decides.
    """

    def note(number: int, frame: FrameType | None) -> None:
        StopRequest.requested = signal.Signals(number).name

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _signal_handler(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGTERM and SIGINT while the block runs, in the main thread; others cannot handle signals."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT) if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def raise_stopped(forward: Callable[[], None]) -> Iterator[None]:
    """In a process whose runs are executed by others: forward SIGTERM and SIGINT, then raise `Stopped`.

    Args:
        forward: tells the others to save and stop.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        forward()
        name = signal.Signals(number).name
        raise Stopped(f"stopped by {name}; the current runs are saved", name)

    with _signal_handler(stop):
        yield


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGTERM and SIGINT into a request that the loop honours after the current step.

    A second SIGINT (Ctrl-C) stops at once.
    """
    stop = StopRequest()

    def request(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and stop.requested:
            raise KeyboardInterrupt
        stop.requested = signal.Signals(number).name

    with _signal_handler(request):
        yield stop


class FiniteLoss:
    """Keeps, on the device, the first step whose loss was NaN or infinite.

    Reading it synchronises a GPU: it is read after each step on the CPU only, else before each checkpoint and at the
    end of each epoch. A checkpoint never holds weights from after such a loss.
    """

    def __init__(self, processes: Processes, hint: str = "try a smaller lr") -> None:
        self.processes, self.hint = processes, hint
        self.first_bad = torch.full((), -1, dtype=torch.int64, device=processes.device)

    def observe(self, loss: Tensor, step: int) -> None:
        """Record the loss of a step."""
        bad = ~loss.detach().isfinite() & (self.first_bad < 0)
        self.first_bad.masked_fill_(bad, step)
        if on_host(self.processes.device) and self.processes.world == 1:
            self.check()

    def check(self) -> None:
        """Raise NonFiniteLoss if any process has observed one. All processes must call it together."""
        own = self.own()
        (bad,) = self.processes.any(own is not None)
        if bad:
            raise own or self._error("in another process")

    def own(self) -> NonFiniteLoss | None:
        """The error of this process, or None. Synchronises the device."""
        step = int(self.first_bad)
        return self._error(f"in step {step}") if step >= 0 else None

    def _error(self, where: str) -> NonFiniteLoss:
        return NonFiniteLoss(f"the loss became infinite or not a number {where}; {self.hint}")
