"""Base classes of supervised methods, and plain cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any, ClassVar

from torch import nn

from isda.engine.method import NamedMethod, Outcome
from isda.networks import Network
from isda.tasks.classification.settings import ClassificationConfig
from isda.tasks.common.data import ImageBatch, ImageBatches


class ClassificationMethod(NamedMethod):
    """A method of `isda train`, made with an instance of its Options, an `isda.networks.Network` and a `Config`."""

    def feed(self, source: ImageBatches) -> None:
        """Called once before the first step with all that the run learns from: for methods that draw batches too."""


@dataclass(frozen=True, kw_only=True)
class CrossEntropyOptions:
    """What may follow ``cross-entropy:``."""

    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes."""

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie in 0..1, got {self.label_smoothing}")


class CrossEntropy(ClassificationMethod):
    """nn.CrossEntropyLoss."""

    name = "cross-entropy"
    Options = CrossEntropyOptions

    def __init__(self, options: CrossEntropyOptions, network: Network, config: ClassificationConfig) -> None:
        super().__init__()
        self.criterion = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)

    def forward(self, network: nn.Module, batch: ImageBatch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        return Outcome({"cross-entropy": self.criterion(logits, batch.targets)}, logits)


class WrapperMethod(ClassificationMethod):
    """A method whose loss is another's, ``base_type``: cross-entropy, or for a name with ``+isda`` ISDA.

    Its Options are those of both, see `merge_options`. State and measures are the other's.
    """

    base_type: ClassVar[type[ClassificationMethod]] = CrossEntropy

    def __init__(self, options: Any, network: Network, config: ClassificationConfig) -> None:
        super().__init__()
        self.base = self.base_type(options, network, config)

    def __init_subclass__(cls, **keywords: Any) -> None:
        """A method on ISDA is of ISDA's family."""
        super().__init_subclass__(**keywords)
        cls.families, cls.divergence_hint = cls.base_type.families, cls.base_type.divergence_hint

    def forward(self, network: nn.Module, batch: ImageBatch) -> Outcome:
        """The other's terms."""
        outcome: Outcome = self.base(network, batch)
        return outcome

    def measures(self) -> dict[str, float]:
        """The other's."""
        return self.base.measures()


def merge_options(own: type, base: type[ClassificationMethod]) -> type:
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
