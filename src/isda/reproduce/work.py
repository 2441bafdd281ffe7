"""What a run has to do, in operations and in bytes, and how long a machine takes for it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Speed", "Work", "training_work"]

OPERATIONS_PER_MULTIPLY_ADD = 6
"""Of one training sample: two operations, in the forward pass and twice in the backward pass."""
TOUCHES = 5
"""How often training moves each element of the activations: written and read again in the forward pass, read in the
backward pass, where its gradient is written and read."""
BYTES = 2
"""Of an element in mixed precision."""


class Speed(NamedTuple):
    """Of a machine, each per second."""

    operations: float
    bytes: float
    together: bool
    """Whether it calculates while it moves memory, as a GPU does: then whichever takes longer is all it takes."""


class Work(NamedTuple):
    """Operations of arithmetic, and bytes to and from memory."""

    operations: float = 0.0
    bytes: float = 0.0

    def times(self, count: float) -> Work:
        """So many times as much."""
        return Work(self.operations * count, self.bytes * count)

    def seconds(self, speed: Speed) -> float:
        """The roofline, whichever of both takes longer, or one after the other.

        Example:
            >>> Work(operations=8e12, bytes=1e12).seconds(Speed(4e12, 2e12, together=True))
            2.0
            >>> Work(operations=8e12, bytes=1e12).seconds(Speed(4e12, 2e12, together=False))
            2.5
        """
        both = self.operations / speed.operations, self.bytes / speed.bytes
        return max(both) if speed.together else sum(both)


def training_work(multiply_adds: float, elements: float, samples: float) -> Work:
    """Forward and backward passes of samples.

    Args:
        multiply_adds: of one sample in one forward pass.
        elements: that the layers put out for it.
        samples: seen in training.
    """
    return Work(OPERATIONS_PER_MULTIPLY_ADD * multiply_adds, TOUCHES * BYTES * elements).times(samples)
