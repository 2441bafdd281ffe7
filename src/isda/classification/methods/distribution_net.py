"""DistributionNet as a method."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch import nn

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.classifier_input import ClassifierInput
from isda.engine.method import Outcome
from isda.losses import DistributionNet as DistributionNetLoss
from isda.networks import Network

__all__ = ["DistributionNet", "DistributionNetOptions"]


@dataclass(frozen=True, kw_only=True)
class DistributionNetOptions:
    """What may follow ``distribution-net:``."""

    sample_weight: float = 0.1
    """Weight of the drawn features beside the mean."""
    samples: int = 1
    """Draws for each image and step."""
    uncertainty_weight: float = 0.001
    """Weight of the loss that keeps the Gaussians from vanishing."""
    deviation: float = 5.0
    """The standard deviation whose entropy it asks for."""


class DistributionNet(ClassificationMethod):
    """`isda.losses.DistributionNet`; its parameters are trained with the network's."""

    name = "distribution-net"
    Options = DistributionNetOptions
    grid = {"uncertainty_weight": (1e-4, 1e-3, 1e-2, 1e-1, 1.0)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: DistributionNetOptions, network: Network, config: Config) -> None:
        super().__init__()
        weight = network.classifier.weight
        self.inputs = ClassifierInput(network.classifier)
        self.criterion = DistributionNetLoss(
            network.feature_dim, **asdict(options), device=weight.device, dtype=weight.dtype
        )

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        features, weight = self.inputs.take(), self.inputs.weight
        loss = self.criterion(logits, batch.targets, features=features, weight=weight)
        return Outcome({self.name: loss}, logits)
