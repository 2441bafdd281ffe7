"""Scratch memory that is used again from step to step.

On the CPU a fresh megabyte costs more than the arithmetic on it: the allocator returns it to the system after each step
and every page has to be mapped again. GPUs have a caching allocator; there this just allocates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isda.devices import on_host

__all__ = ["Scratch"]

_spare: dict[torch.dtype, Tensor] = {}


class Scratch:
    """Uninitialised memory of a given shape, handed back for reuse when the object dies.

    Use ``.tensor`` only while the object is alive. One buffer per dtype is kept back, the largest seen; what asks for
    it is bounded by WORKSPACE_BYTES.
    """

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        size = math.prod(shape)
        buffer = _spare.pop(like.dtype, None) if on_host(like) else None
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(shape, dtype=like.dtype, device=like.device)
        self._buffer = buffer
        self.tensor = buffer if buffer.shape == shape else buffer.view(-1)[:size].view(shape)

    def __del__(self) -> None:
        buffer = getattr(self, "_buffer", None)
        # Memory made in inference mode could not be written to outside of it.
        if buffer is not None and on_host(buffer) and not buffer.is_inference():
            other = _spare.get(buffer.dtype)
            if other is None or other.numel() < buffer.numel():
                _spare[buffer.dtype] = buffer
