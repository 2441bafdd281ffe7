"""Methods on top of others: they change the batch or how a step is made; the loss is cross-entropy, or ISDA's."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any, ClassVar

from torch import nn

from isda.classification.batches import Batch
from isda.classification.config import Config
from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.cross_entropy import CrossEntropy
from isda.engine.method import Outcome
from isda.engine.recipe import Recipe
from isda.networks import Network

__all__ = ["OnTop", "both_options"]


class OnTop(ClassificationMethod):
    """A method whose loss is another's, ``base_type``: cross-entropy, or for a name with ``+isda`` ISDA.

    Its Options are those of both, see `both_options`. State and measures are the other's.
    """

    base_type: ClassVar[type[ClassificationMethod]] = CrossEntropy

    def __init__(self, options: Any, network: Network, config: Config) -> None:
        super().__init__()
        self.base = self.base_type(options, network, config)

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """The other's."""
        return cls.base_type.defaults(recipe, lambda_0)

    @classmethod
    def grid_for(cls, recipe: Recipe) -> dict[str, tuple[Any, ...]]:
        """ISDA's strengths where ISDA is below, else the method's own."""
        return cls.base_type.grid_for(recipe) or cls.grid

    def forward(self, network: nn.Module, batch: Batch) -> Outcome:
        """The other's terms."""
        outcome: Outcome = self.base(network, batch)
        return outcome

    def measures(self) -> dict[str, float]:
        """The other's."""
        return self.base.measures()


def both_options(own: type, base: type[ClassificationMethod]) -> type:
    """A dataclass with the options of a method and of the one that it is on top of.

    Example:
        >>> from dataclasses import dataclass, fields
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Own:
        ...     alpha: float = 1.0
        >>> sorted(field.name for field in fields(both_options(Own, CrossEntropy)))
        ['alpha', 'label_smoothing']
    """
    return make_dataclass(own.__name__, (), bases=(own, base.Options), frozen=True, kw_only=True)
