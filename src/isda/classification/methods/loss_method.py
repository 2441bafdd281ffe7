"""Methods that are one loss of logits and labels, and the same ones on top of ISDA.

A loss of `isda.losses` takes the cross-entropy of each sample from elsewhere if it is told to: ISDA's bound of it makes
``focal+isda`` from ``focal``, without either knowing the other.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import make_dataclass
from typing import Any

from torch import Tensor, nn

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.isda import ISDA
from isda.classification.methods.semantic_options import ISDAOptions
from isda.engine.method import Outcome
from isda.engine.recipe import Recipe
from isda.losses import ISDALoss
from isda.networks import Network

__all__ = ["ISDA_SUFFIX", "LossMethod", "with_isda"]

ISDA_SUFFIX = "+isda"


class LossMethod(ClassificationMethod):
    """One term: a criterion of the logits and the labels."""

    def __init__(self, options: Any, network: Network, config: Config) -> None:
        super().__init__()
        self.criterion = self.make_criterion(options, network, config, self.cross_entropy(options, network, config))

    @classmethod
    @abstractmethod
    def make_criterion(
        cls, options: Any, network: Network, config: Config, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The criterion, made from the cross-entropies (N,) of another one where there is one."""

    def cross_entropy(self, options: Any, network: Network, config: Config) -> ISDALoss | None:
        """What gives the cross-entropy of each sample; None for the plain one."""
        return None

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The criterion of a step."""
        loss: Tensor = self.criterion(logits, targets)
        return loss

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """The term has the method's name, with ISDA and without."""
        logits = network(batch.images)
        return Outcome({self.name.removesuffix(ISDA_SUFFIX): self.loss(logits, batch.targets)}, logits)


class _OnISDA(LossMethod):
    """What a method does otherwise on top of ISDA."""

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """ISDA's own for the network, and the method's."""
        return ISDA.defaults(recipe, lambda_0) | super().defaults(recipe, lambda_0)

    @classmethod
    def grid_for(cls, recipe: Recipe) -> dict[str, tuple[Any, ...]]:
        """ISDA's strengths; the method's own stays as it is."""
        return ISDA.grid_for(recipe)

    def cross_entropy(self, options: Any, network: Network, config: Config) -> ISDALoss:
        """ISDA's bound, attached to the network's classifier; its strength grows over the whole run."""
        settings = options.criterion_settings(network.classifier, config.total_steps)
        return ISDALoss.attach(network, classifier=network.classifier, reduction="none", **settings)

    def measures(self) -> dict[str, float]:
        """The method's, and ISDA's strength lambda."""
        bound: Any = self.criterion.cross_entropy
        return super().measures() | {"strength": bound.strength}


def with_isda(method: type[LossMethod]) -> type[LossMethod]:
    """The method ``NAME+isda``, with the options of both.

    Example:
        >>> from isda.classification.methods.focal import Focal
        >>> with_isda(Focal).name, with_isda(Focal).Options(gamma=2.0).lambda_0
        ('focal+isda', 0.5)
    """
    name = f"{method.__name__}WithISDA"
    options = make_dataclass(f"{name}Options", (), bases=(method.Options, ISDAOptions), frozen=True, kw_only=True)
    body = {"name": method.name + ISDA_SUFFIX, "Options": options, "__module__": method.__module__}
    return type(name, (_OnISDA, method), body | {"__doc__": f"{method.__name__} on top of ISDA."})
