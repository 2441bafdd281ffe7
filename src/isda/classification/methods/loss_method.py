"""Methods that are one loss of logits and labels.

A loss of `isda.losses` takes the cross-entropy of each sample from elsewhere if it is told to: ISDA's bound of it makes
``focal+isda`` from ``focal``, without either knowing the other.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.on_isda import AlsoOnISDA
from isda.engine.method import Outcome
from isda.networks import Network

__all__ = ["LossMethod"]


class LossMethod(AlsoOnISDA):
    """One term: a criterion of the logits and the labels."""

    def __init__(self, options: Any, network: Network, config: Config) -> None:
        super().__init__()
        bound = self.isda_criterion(options, network, config, reduction="none")
        self.criterion = self.make_criterion(options, network, config, bound)

    @classmethod
    @abstractmethod
    def make_criterion(
        cls, options: Any, network: Network, config: Config, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The criterion, made from the cross-entropies (N,) of another one where there is one."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The criterion of a step."""
        loss: Tensor = self.criterion(logits, targets)
        return loss

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        return Outcome({self.term: self.loss(logits, batch.targets)}, logits)
