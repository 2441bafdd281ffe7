"""Device helpers: host memory test, non-blocking copies, cached host values, leaving autocast, eval mode for a block.

Reading a value of another device makes the host wait for all queued work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

_Value = TypeVar("_Value")

READ_EVERY = 100
"""Off the host, values that are not urgent (numbers of bad rows, sizes of variances) are read every so many calls."""


_recording = False


def in_graph() -> bool:
    """Whether a graph is recorded, by torch.compile or for CUDA: no value may be read then, whatever the device."""
    return torch.compiler.is_compiling() or _recording or _is_capturing()


def _is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def in_transform() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp, ...) is running: its tensors have no memory of their own."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


@contextmanager
def recording() -> Iterator[None]:
    """Run a block as if a CUDA graph were captured, on any device."""
    global _recording
    before, _recording = _recording, True
    try:
        yield
    finally:
        _recording = before


def on_host(where: Tensor | torch.device) -> bool:
    """Whether a tensor, or the memory of a device, is the CPU's, and its values may be read.

    Example:
        >>> on_host(torch.zeros(3)), on_host(torch.device("cuda"))
        (True, False)
    """
    here = where.is_cpu if isinstance(where, Tensor) else where.type == "cpu"
    return here and not in_graph() and not in_transform()


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


class HostMirror(Generic[_Value]):
    """A value that was computed from a buffer, known until the buffer changes or another one takes its place.

    Example:
        >>> mirror, buffer = HostMirror(), torch.zeros(2)
        >>> mirror.write(buffer, 0.0)
        >>> mirror.read(buffer)
        0.0
        >>> mirror.read(buffer.add_(1)) is None
        True
    """

    def __init__(self) -> None:
        # The buffer itself is kept, so that no other one can take its place in memory and pass for it.
        self._buffer: Tensor | None = None
        self._address, self._version = 0, -1
        self._value: _Value | None = None

    def __reduce__(self) -> tuple[type[HostMirror[_Value]], tuple[()]]:
        """A copy knows nothing: its buffer is another one."""
        return (HostMirror, ())

    def read(self, buffer: Tensor) -> _Value | None:
        """The value that was written for this state of the buffer, or None."""
        if self._buffer is not buffer or (self._address, self._version) != (buffer.data_ptr(), buffer._version):
            return None
        return self._value

    def write(self, buffer: Tensor, value: _Value) -> None:
        """Keep the value that belongs to the buffer as it is now; one made in inference mode, no graph could use."""
        if isinstance(value, Tensor) and value.is_inference():
            self._buffer = self._value = None
            return
        self._buffer, self._value = buffer, value
        self._address, self._version = buffer.data_ptr(), buffer._version


def outside_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which products keep the dtype of their factors."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


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
