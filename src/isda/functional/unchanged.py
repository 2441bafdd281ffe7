"""Statistics that a backward pass reads again must be those of the forward pass."""

from __future__ import annotations

from torch import Tensor

__all__ = ["Unchanged"]


class Unchanged:
    """Remembers the state of buffers that a backward pass will read again, and refuses to go on if they moved."""

    def __init__(self, *buffers: Tensor) -> None:
        self._seen = [(buffer, buffer._version) for buffer in buffers]

    def check(self) -> None:
        """Raise RuntimeError if a buffer was changed since."""
        if any(buffer._version != version for buffer, version in self._seen):
            raise RuntimeError(
                "the covariance statistics were updated between a forward pass and its backward pass, which has to "
                "read them again at this size; call backward() before the next training forward"
            )
