"""ISDA and explicit semantic augmentation as training methods, and other methods combined with ISDA."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from torch import nn

from isda.engine.method import Outcome
from isda.losses import ExplicitLoss, ISDALoss, SemanticLoss
from isda.networks import Network
from isda.tasks.classification.methods.base import ClassificationMethod, merge_options
from isda.tasks.classification.settings import ClassificationConfig
from isda.tasks.common.data import ImageBatch
from isda.tasks.common.isda_options import DIVERGENCE_HINT, ExplicitOptions, ISDAOptions, SemanticOptions


class SemanticMethod(ClassificationMethod):
    """One criterion over augmented features."""

    families = ("isda",)
    divergence_hint = DIVERGENCE_HINT
    criterion_type: ClassVar[type[SemanticLoss]]
    term: ClassVar[str]
    """How metrics call the loss."""

    def __init__(self, options: SemanticOptions, network: Network, config: ClassificationConfig) -> None:
        super().__init__()
        self.criterion = options.attached(self.criterion_type, network, config.total_steps)

    def forward(self, network: nn.Module, batch: ImageBatch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        return Outcome({self.term: self.criterion(logits, batch.targets)}, logits)

    def measures(self) -> dict[str, float]:
        """The strength lambda."""
        return {"strength": self.criterion.strength}


class ISDA(SemanticMethod):
    """The bound of Prop. 1, attached to the network's classifier; its strength grows over the whole run."""

    name = "isda"
    Options = ISDAOptions
    criterion_type = ISDALoss
    term = "isda"


class ISDATilted(ISDA):
    """The same with the tilted bound."""

    name = "isda-tilted"
    settled = {"bound": "tilted"}  # noqa: RUF012, a class variable of the base


class ExplicitMethod(SemanticMethod):
    """The paper's equation 5, which ISDA is the limit of; its strength grows over the whole run."""

    name = "explicit"
    Options = ExplicitOptions
    criterion_type = ExplicitLoss
    term = "explicit"


_SUFFIX = "+isda"
_Method = TypeVar("_Method", bound="ISDACombinable")


class ISDACombinable(ClassificationMethod):
    """A method that takes the losses of samples from ISDA's criterion, where it is given one."""

    def isda_criterion(
        self, options: Any, network: Network, config: ClassificationConfig, **given: Any
    ) -> ISDALoss | None:
        """The criterion, with what the method gives it; None for a method that does without by itself."""
        return None

    @property
    def term(self) -> str:
        """How metrics call the loss: by the method's name, with ISDA and without."""
        return self.name.removesuffix(_SUFFIX)


class _CombinedWithISDA(ISDACombinable):
    """What a method does otherwise on top of ISDA."""

    divergence_hint = DIVERGENCE_HINT

    def isda_criterion(self, options: Any, network: Network, config: ClassificationConfig, **given: Any) -> ISDALoss:
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
        >>> from isda.tasks.classification.methods.losses import Focal
        >>> with_isda(Focal).name, with_isda(Focal).Options(gamma=2.0).lambda_0
        ('focal+isda', 0.5)
    """
    body = {
        "name": method.name + _SUFFIX,
        "Options": merge_options(method.Options, ISDA),
        "families": (*ISDA.families, *method.families),
        "__module__": method.__module__,
        "__doc__": f"{method.__name__} on top of ISDA.",
    }
    return type(f"{method.__name__}WithISDA", (_CombinedWithISDA, method), body)
