"""Methods that come by themselves and, as ``NAME+isda``, with the losses of samples from ISDA's criterion."""

from __future__ import annotations

from typing import Any, TypeVar

from isda.classification.config import Config
from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.isda import ISDA
from isda.classification.methods.on_top import both_options
from isda.engine.recipe import Recipe
from isda.losses import ISDALoss
from isda.networks import Network

__all__ = ["AlsoOnISDA", "with_isda"]

_SUFFIX = "+isda"
_Method = TypeVar("_Method", bound="AlsoOnISDA")


class AlsoOnISDA(ClassificationMethod):
    """A method that takes the losses of samples from ISDA's criterion, where it is given one."""

    def isda_criterion(self, options: Any, network: Network, config: Config, **given: Any) -> ISDALoss | None:
        """The criterion, with what the method gives it; None for a method that does without by itself."""
        return None

    @property
    def term(self) -> str:
        """How metrics call the loss: by the method's name, with ISDA and without."""
        return self.name.removesuffix(_SUFFIX)


class _OnISDA(AlsoOnISDA):
    """What a method does otherwise on top of ISDA."""

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """ISDA's own for the network, and the method's."""
        return ISDA.defaults(recipe, lambda_0) | super().defaults(recipe, lambda_0)

    @classmethod
    def grid_for(cls, recipe: Recipe) -> dict[str, tuple[Any, ...]]:
        """ISDA's strengths; the method's own stays as it is."""
        return ISDA.grid_for(recipe)

    def isda_criterion(self, options: Any, network: Network, config: Config, **given: Any) -> ISDALoss:
        """ISDA's bound, attached to the network's classifier; its strength grows over the whole run."""
        criterion: ISDALoss = options.attached(ISDALoss, network, config.total_steps, **given)
        return criterion

    def measures(self) -> dict[str, float]:
        """The method's, and ISDA's strength lambda."""
        (criterion,) = (module for module in self.modules() if isinstance(module, ISDALoss))
        return super().measures() | {"strength": criterion.strength}


def with_isda(method: type[_Method]) -> type[_Method]:
    """The method ``NAME+isda``, with the options of both.

    Example:
        >>> from isda.classification.methods.focal import Focal
        >>> with_isda(Focal).name, with_isda(Focal).Options(gamma=2.0).lambda_0
        ('focal+isda', 0.5)
    """
    body = {
        "name": method.name + _SUFFIX,
        "Options": both_options(method.Options, ISDA),
        "__module__": method.__module__,
        "__doc__": f"{method.__name__} on top of ISDA.",
    }
    return type(f"{method.__name__}WithISDA", (_OnISDA, method), body)
