"""What a run has to do, in operations and in bytes, and how long a machine takes for it: a roofline."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Work", "training_work"]

OPERATIONS_PER_MULTIPLY_ADD = 6
"""Of one training sample: two operations, in the forward pass and twice in the backward pass."""
TOUCHES = 5
"""How often training moves each element of the activations: written and read again in the forward pass, read in the
backward pass, where its gradient is written and read."""
BYTES = 2
"""Of an element in mixed precision."""


class Work(NamedTuple):
    """Operations of arithmetic, and bytes to and from memory."""

    operations: float = 0.0
    bytes: float = 0.0

    def times(self, count: float) -> Work:
        """So many times as much."""
        return Work(self.operations * count, self.bytes * count)

    def seconds(self, operations_per_second: float, bytes_per_second: float = float("inf")) -> float:
        """The roofline: whichever of both takes longer.

        Example:
            >>> Work(operations=8e12, bytes=1e12).seconds(4e12, 2e12)
            2.0
        """
        return max(self.operations / operations_per_second, self.bytes / bytes_per_second)


def training_work(multiply_adds: float, elements: float, samples: float) -> Work:
    """Forward and backward passes of samples.

    Args:
        multiply_adds: of one sample in one forward pass.
        elements: that the layers put out for it.
        samples: seen in training.
    """
    return Work(OPERATIONS_PER_MULTIPLY_ADD * multiply_adds, TOUCHES * BYTES * elements).times(samples)
