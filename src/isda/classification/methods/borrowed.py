"""What methods share whose covariances are made from estimated ones: RISDA, MetaSAug."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from isda.classification.config import Config
from isda.classification.methods.long_tail import LongTailMethod
from isda.classification.methods.semantic import SemanticMethod
from isda.covariance import CovarianceModel, create
from isda.engine.recipe import Recipe
from isda.losses import ISDALoss
from isda.networks import Network

__all__ = ["BorrowedCovarianceMethod"]

_OF_CRITERION = ("lambda_0", "total_steps", "bound", "tilt_steps", "label_smoothing")


class BorrowedCovarianceMethod(LongTailMethod):
    """The criterion's covariance is made by the method from the one that the options name."""

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """The paper's strength and covariance for the network."""
        return SemanticMethod.defaults(recipe, lambda_0)

    @classmethod
    def grid_for(cls, recipe: Recipe) -> dict[str, tuple[Any, ...]]:
        """The strengths that the paper chooses from."""
        return SemanticMethod.grid_for(recipe)

    @abstractmethod
    def wrapped(self, base: CovarianceModel, options: Any) -> CovarianceModel:
        """The model of the criterion from the one that estimates."""

    def isda_criterion(self, options: Any, network: Network, config: Config, **given: Any) -> ISDALoss:
        """Attached to the network's classifier; the strength grows over the whole run."""
        head = network.classifier
        settings = options.criterion_settings(head, config.total_steps)
        base = settings.pop("covariance")
        if isinstance(base, str):
            own = {name: settings.pop(name) for name in list(settings) if name not in _OF_CRITERION}
            dtype = torch.promote_types(head.weight.dtype, torch.float32)
            num_classes, feature_dim = head.weight.shape
            base = create(base, num_classes, feature_dim, device=head.weight.device, dtype=dtype, **own)
        model = self.wrapped(base, options)
        return ISDALoss.attach(network, classifier=head, covariance=model, **(settings | given))

    def measures(self) -> dict[str, float]:
        """The strength lambda."""
        return {"strength": self.criterion.strength}
