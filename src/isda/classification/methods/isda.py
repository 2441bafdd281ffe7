"""ISDA as a method of training, with the published bound and with the tilted one."""

from __future__ import annotations

from typing import Any

from torch import nn

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.isda_options import ISDAOptions
from isda.engine.method import Outcome
from isda.engine.recipe import Recipe
from isda.losses import ISDALoss
from isda.networks import Network

__all__ = ["ISDA", "ISDATilted"]


class ISDA(ClassificationMethod):
    """The bound of Prop. 1, attached to the network's classifier; its strength grows over the whole run."""

    name = "isda"
    Options = ISDAOptions

    def __init__(self, options: ISDAOptions, network: Network, config: Config) -> None:
        super().__init__()
        self.criterion = ISDALoss.attach(
            network, classifier=network.classifier, **options.criterion_settings(network.classifier, config.total_steps)
        )

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """The paper's strength and covariance for the network."""
        strength = recipe.lambda_0 if lambda_0 is None else lambda_0
        return {"lambda_0": strength, "covariance": recipe.covariance, "bound": "jensen"}

    @classmethod
    def grid_for(cls, recipe: Recipe) -> dict[str, tuple[Any, ...]]:
        """The strengths that the paper chooses from."""
        return {"lambda_0": recipe.strengths}

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """One term: the bound."""
        logits = network(batch.images)
        return Outcome({"isda": self.criterion(logits, batch.targets)}, logits)

    def measures(self) -> dict[str, float]:
        """The strength lambda."""
        return {"strength": self.criterion.strength}


class ISDATilted(ISDA):
    """The same with the tilted bound."""

    name = "isda-tilted"
    settled = {"bound": "tilted"}  # noqa: RUF012, a class variable of the base
