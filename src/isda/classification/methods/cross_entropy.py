"""Plain cross-entropy: what every other method is compared to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.base import ClassificationMethod
from isda.engine.method import Outcome
from isda.networks import Network

__all__ = ["CrossEntropy", "CrossEntropyOptions"]


@dataclass(frozen=True, kw_only=True)
class CrossEntropyOptions:
    """What may follow ``cross-entropy:``."""

    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie in 0..1, got {self.label_smoothing}")


class CrossEntropy(ClassificationMethod):
    """nn.CrossEntropyLoss."""

    name = "cross-entropy"
    Options = CrossEntropyOptions

    def __init__(self, options: CrossEntropyOptions, network: Network, config: Config) -> None:
        super().__init__()
        self.criterion = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        return Outcome({"cross-entropy": self.criterion(logits, batch.targets)}, logits)
