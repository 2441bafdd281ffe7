"""What methods of augmented features share: a criterion on the classifier, whose strength grows over the run."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.semantic_options import SemanticOptions
from isda.engine.method import Outcome
from isda.engine.recipe import Recipe
from isda.losses import SemanticLoss
from isda.networks import Network

__all__ = ["SemanticMethod"]


class SemanticMethod(ClassificationMethod):
    """One criterion over augmented features."""

    criterion_type: ClassVar[type[SemanticLoss]]
    term: ClassVar[str]
    """How metrics call the loss."""

    def __init__(self, options: SemanticOptions, network: Network, config: Config) -> None:
        super().__init__()
        self.criterion = options.attached(self.criterion_type, network, config.total_steps)

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """The paper's strength and covariance for the network."""
        return {"lambda_0": recipe.lambda_0 if lambda_0 is None else lambda_0, "covariance": recipe.covariance}

    @classmethod
    def grid_for(cls, recipe: Recipe) -> dict[str, tuple[Any, ...]]:
        """The strengths that the paper chooses from."""
        return {"lambda_0": recipe.strengths}

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        return Outcome({self.term: self.criterion(logits, batch.targets)}, logits)

    def measures(self) -> dict[str, float]:
        """The strength lambda."""
        return {"strength": self.criterion.strength}
