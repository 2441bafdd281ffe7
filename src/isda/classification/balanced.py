"""Batches with equally many images of each class, drawn with replacement from what a run learns from."""

from __future__ import annotations

import torch
from torch import Tensor

from isda.classification.batches import Batch, Batches
from isda.seeds import generator, mix

__all__ = ["BalancedBatches"]

_PURPOSE = mix(*b"balanced")


class BalancedBatches:
    """A batch for each step, a function of (seed, step); classes without training images have none.

    Args:
        source: what the run learns from.
        size: images of a batch over all processes together, rounded up to a multiple of the classes.
    """

    def __init__(self, source: Batches, size: int) -> None:
        self.source = source
        labels = source.labels.cpu()[source.indices]
        counts = labels.bincount()
        present = counts.nonzero().flatten()
        self._sizes = counts[present]
        self._starts = self._sizes.cumsum(0) - self._sizes
        self._by_class = source.indices[labels.argsort(stable=True)]
        self._per_class = -(-size // len(present))

    def indices(self, step: int) -> Tensor:
        """(classes * per class,) positions in the data set of the batch of a step, all processes together."""
        drawing = generator(self.source.seed, _PURPOSE, step)
        draws = torch.rand(len(self._sizes), self._per_class, generator=drawing, dtype=torch.float64)
        places = self._starts.unsqueeze(1) + (draws * self._sizes.unsqueeze(1)).long()
        return self._by_class[places.flatten()]

    def batch(self, step: int, epoch: int) -> Batch:
        """This process's part of the batch of a step, augmented as in an epoch."""
        return self.source.samples(self.indices(step).tensor_split(self.source.world)[self.source.rank], epoch)
