"""Base classes of supervised methods, and plain cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from isda.lab.engine.method import NamedMethod, Outcome
from isda.lab.networks import Network

if TYPE_CHECKING:
    from isda.lab.tasks.classification.settings import ClassificationConfig
    from isda.lab.tasks.common.data import ImageBatch

ISDA_SUFFIX = "+isda"


class ClassificationMethod(NamedMethod):
    """A method of `isda train`, made with an instance of its Options, an `isda.lab.networks.Network` and a `Config`."""


class CriterionMethod(ClassificationMethod):
    """A method with one loss term: its ``criterion`` of the logits and the targets."""

    criterion: nn.Module
    term: ClassVar[str] = ""
    """The name of the loss in metrics; if empty that of the method, without ``+isda``."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of one step, a scalar."""
        loss: Tensor = self.criterion(logits, targets)
        return loss

    def forward(self, network: nn.Module, batch: ImageBatch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        term = self.term or self.name.removesuffix(ISDA_SUFFIX)
        return Outcome({term: self.loss(logits, batch.targets)}, logits)


class CombinableMethod(CriterionMethod):
    """A method that can be combined with ISDA: `with_isda` replaces ``base_criterion`` by ISDA's bound."""

    def base_criterion(
        self, options: Any, network: Network, config: ClassificationConfig, **settings: Any
    ) -> nn.Module | None:
        """The cross-entropy that the method builds on; None if its own loss computes it.

        Args:
            options: of the method.
            network: before it is wrapped or compiled.
            config: of the run.
            settings: further arguments of ISDALoss.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class CrossEntropyOptions:
    """What may follow ``cross-entropy:``."""

    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie in 0..1, got {self.label_smoothing}")


class CrossEntropy(CombinableMethod):
    """nn.CrossEntropyLoss; the base class of methods that change the batch or the gradient, not the loss."""

    name = term = "cross-entropy"
    Options = CrossEntropyOptions

    def __init__(self, options: CrossEntropyOptions, network: Network, config: ClassificationConfig) -> None:
        super().__init__()
        self.criterion = self.base_criterion(options, network, config)

    def base_criterion(
        self, options: Any, network: Network, config: ClassificationConfig, **settings: Any
    ) -> nn.Module:
        """nn.CrossEntropyLoss."""
        return nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
