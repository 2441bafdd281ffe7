"""Losses of logits and labels as training methods, each also available on top of ISDA (``focal+isda``)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from isda.engine.method import Outcome
from isda.losses import ConfidencePenalty as ConfidencePenaltyLoss
from isda.losses import DisturbLabel as DisturbLabelLoss
from isda.losses import FocalLoss, LqLoss
from isda.losses import LabelSmoothing as LabelSmoothingLoss
from isda.networks import Network
from isda.tasks.classification.methods.isda import ISDACombinable
from isda.tasks.classification.settings import ClassificationConfig
from isda.tasks.common.data import ImageBatch

# Methods that are one loss of logits and labels.
#
# A loss of `isda.losses` takes the cross-entropy of each sample from elsewhere if it is told to: ISDA's bound of it
# makes ``focal+isda`` from ``focal``, without either knowing the other.


class LossMethod(ISDACombinable):
    """One term: a criterion of the logits and the labels."""

    def __init__(self, options: Any, network: Network, config: ClassificationConfig) -> None:
        super().__init__()
        bound = self.isda_criterion(options, network, config, reduction="none")
        self.criterion = self.make_criterion(options, network, config, bound)

    @classmethod
    @abstractmethod
    def make_criterion(
        cls, options: Any, network: Network, config: ClassificationConfig, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The criterion, made from the cross-entropies (N,) of another one where there is one."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The criterion of a step."""
        loss: Tensor = self.criterion(logits, targets)
        return loss

    def forward(self, network: nn.Module, batch: ImageBatch) -> Outcome:
        """One term: the criterion."""
        logits = network(batch.images)
        return Outcome({self.term: self.loss(logits, batch.targets)}, logits)


@dataclass(frozen=True, kw_only=True)
class LabelSmoothingOptions:
    """What may follow ``label-smoothing:``."""

    smoothing: float = 0.1
    """Share of the target that is spread over all classes."""


class LabelSmoothingMethod(LossMethod):
    """`isda.losses.LabelSmoothing`."""

    name = "label-smoothing"
    Options = LabelSmoothingOptions
    grid = {"smoothing": (0.02, 0.05, 0.1, 0.2, 0.3)}  # noqa: RUF012, a class variable of the base

    @classmethod
    def make_criterion(
        cls,
        options: LabelSmoothingOptions,
        network: Network,
        config: ClassificationConfig,
        cross_entropy: nn.Module | None,
    ) -> nn.Module:
        """The loss."""
        return LabelSmoothingLoss(options.smoothing, cross_entropy=cross_entropy)


@dataclass(frozen=True, kw_only=True)
class DisturbLabelOptions:
    """What may follow ``disturb-label:``."""

    rate: float = 0.05
    """Share of the labels that are drawn anew in a step."""


class DisturbLabelMethod(LossMethod):
    """`isda.losses.DisturbLabel`; its draws follow from the seed, the step and the process."""

    name = "disturb-label"
    Options = DisturbLabelOptions
    grid = {"rate": (0.02, 0.05, 0.1, 0.2, 0.3)}  # noqa: RUF012, a class variable of the base
    families = ("disturb-label",)

    @classmethod
    def make_criterion(
        cls,
        options: DisturbLabelOptions,
        network: Network,
        config: ClassificationConfig,
        cross_entropy: nn.Module | None,
    ) -> nn.Module:
        """The loss."""
        return DisturbLabelLoss(options.rate, cross_entropy=cross_entropy)


@dataclass(frozen=True, kw_only=True)
class FocalOptions:
    """What may follow ``focal:``."""

    alpha: float = 0.5
    """Factor on the loss."""
    gamma: float = 1.0
    """How much less easy samples weigh."""


class Focal(LossMethod):
    """`isda.losses.FocalLoss`."""

    name = "focal"
    Options = FocalOptions
    grid = {"gamma": (0.2, 0.5, 1.0, 2.0, 5.0)}  # noqa: RUF012, a class variable of the base

    @classmethod
    def make_criterion(
        cls, options: FocalOptions, network: Network, config: ClassificationConfig, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The loss."""
        return FocalLoss(options.alpha, options.gamma, cross_entropy=cross_entropy)


@dataclass(frozen=True, kw_only=True)
class LqOptions:
    """What may follow ``lq:``."""

    q: float = 0.4
    """0 for cross-entropy, 1 for mean absolute error."""


class Lq(LossMethod):
    """`isda.losses.LqLoss`."""

    name = "lq"
    Options = LqOptions
    grid = {"q": (0.1, 0.2, 0.4, 0.55, 0.7)}  # noqa: RUF012, a class variable of the base

    @classmethod
    def make_criterion(
        cls, options: LqOptions, network: Network, config: ClassificationConfig, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The loss."""
        return LqLoss(options.q, cross_entropy=cross_entropy)


@dataclass(frozen=True, kw_only=True)
class ConfidencePenaltyOptions:
    """What may follow ``confidence-penalty:``."""

    beta: float = 0.1
    """Weight of the entropy of the prediction."""


class ConfidencePenaltyMethod(LossMethod):
    """`isda.losses.ConfidencePenalty`."""

    name = "confidence-penalty"
    Options = ConfidencePenaltyOptions
    grid = {"beta": (0.05, 0.1, 0.3, 0.5, 1.0)}  # noqa: RUF012, a class variable of the base

    @classmethod
    def make_criterion(
        cls,
        options: ConfidencePenaltyOptions,
        network: Network,
        config: ClassificationConfig,
        cross_entropy: nn.Module | None,
    ) -> nn.Module:
        """The loss."""
        return ConfidencePenaltyLoss(options.beta, cross_entropy=cross_entropy)
