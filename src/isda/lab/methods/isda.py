"""ISDA and explicit semantic augmentation as training methods, and other methods combined with ISDA."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from isda import ExplicitLoss, ISDALoss
from isda.lab.methods.base import ISDA_SUFFIX, CombinableMethod, CriterionMethod, CrossEntropy
from isda.lab.methods.options import DIVERGENCE_HINT, ExplicitOptions, ISDAOptions, SemanticOptions
from isda.lab.networks import Network

if TYPE_CHECKING:
    from isda.lab.tasks.classification.settings import ClassificationConfig


class SemanticMethod(CriterionMethod):
    """A criterion over augmented features, attached to the network's classifier."""

    criterion: ISDALoss
    families = ("isda",)
    divergence_hint = DIVERGENCE_HINT
    criterion_type: ClassVar[type[ISDALoss]]

    def __init__(self, options: SemanticOptions, network: Network, config: ClassificationConfig) -> None:
        super().__init__()
        self.criterion = options.attached(self.criterion_type, network, config.total_steps)

    def measures(self) -> dict[str, float]:
        """The strength lambda."""
        return {"strength": self.criterion.strength}


class ISDA(SemanticMethod):
    """The bound of Prop. 1; its strength grows over the whole run."""

    name = term = "isda"
    Options = ISDAOptions
    criterion_type = ISDALoss


class ISDATilted(ISDA):
    """ISDA with the tilted bound."""

    name = "isda-tilted"
    settled = {"bound": "tilted"}  # noqa: RUF012, a class variable of the base


class ExplicitMethod(SemanticMethod):
    """The paper's equation 5, which ISDA is the limit of; its strength grows over the whole run."""

    name = "explicit"
    Options = ExplicitOptions
    criterion_type = ExplicitLoss


_Method = TypeVar("_Method", bound=CombinableMethod)


class _WithISDA(CombinableMethod):
    """What `with_isda` overrides of a method."""

    divergence_hint = DIVERGENCE_HINT

    def base_criterion(self, options: Any, network: Network, config: ClassificationConfig, **settings: Any) -> ISDALoss:
        """ISDA's bound, attached to the network's classifier; its strength grows over the whole run."""
        criterion: ISDALoss = options.attached(ISDALoss, network, config.total_steps, **settings)
        return criterion

    def measures(self) -> dict[str, float]:
        """The method's, and ISDA's strength lambda."""
        (criterion,) = (module for module in self.modules() if isinstance(module, ISDALoss))
        return super().measures() | {"strength": criterion.strength}


def with_isda(method: type[_Method]) -> type[_Method]:
    """The method ``NAME+isda``, with the options of both.

    Example:
        >>> from isda.lab.methods.mixup import Mixup
        >>> with_isda(Mixup).name, with_isda(Mixup).Options(alpha=0.2).lambda_0
        ('mixup+isda', 0.5)
    """
    body = {
        "name": method.name + ISDA_SUFFIX,
        "term": method.term.replace(CrossEntropy.term, ISDA.term),
        "families": (*ISDA.families, *method.families),
        "Options": make_dataclass(
            method.Options.__name__, (), bases=(method.Options, ISDAOptions), frozen=True, kw_only=True
        ),
        "__module__": method.__module__,
        "__doc__": f"{method.__name__} on top of ISDA.",
    }
    return type(f"{method.__name__}WithISDA", (_WithISDA, method), body)
