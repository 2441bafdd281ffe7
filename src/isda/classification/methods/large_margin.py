"""Large-margin softmax as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.classifier_input import ClassifierInput
from isda.engine.method import Outcome
from isda.losses import LargeMarginLoss
from isda.networks import Network

__all__ = ["LargeMargin", "LargeMarginOptions"]

_GAMMA_OF_A_RUN = 0.6
"""The authors' gamma on CIFAR-10 times their number of steps: 2e-5 * 30,000."""


@dataclass(frozen=True, kw_only=True)
class LargeMarginOptions:
    """What may follow ``large-margin:``."""

    margin: int = 2
    """How often the angle counts; 1 is cross-entropy."""
    base: float = 1000.0
    """lambda at the start."""
    gamma: float | None = None
    """How fast it falls; by default 0.6 / steps of the run, as in the authors' runs on CIFAR-10."""
    power: float = 45.0
    """With which power it falls."""
    lambda_min: float = 0.0
    """What it does not fall below."""


class LargeMargin(ClassificationMethod):
    """`isda.losses.LargeMarginLoss` on the network's classifier, whose bias stays outside the angle."""

    name = "large-margin"
    Options = LargeMarginOptions
    grid = {"margin": (2, 3, 4)}  # noqa: RUF012, a class variable of the base

    def __init__(self, options: LargeMarginOptions, network: Network, config: Config) -> None:
        super().__init__()
        self.inputs = ClassifierInput(network.classifier)
        self.criterion = LargeMarginLoss(
            options.margin,
            base=options.base,
            gamma=_GAMMA_OF_A_RUN / config.total_steps if options.gamma is None else options.gamma,
            power=options.power,
            lambda_min=options.lambda_min,
            device=network.classifier.weight.device,
        )

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        features, weight = self.inputs.take(), self.inputs.weight
        loss = self.criterion(logits, batch.targets, features=features, weight=weight)
        return Outcome({self.name: loss}, logits)

    def measures(self) -> dict[str, float]:
        """The annealing lambda of the last step."""
        return {"annealing": float(self.criterion.annealing)}
