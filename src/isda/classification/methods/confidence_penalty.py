"""The confidence penalty as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from isda.classification.config import Config
from isda.classification.methods.loss_method import LossMethod
from isda.losses import ConfidencePenalty as ConfidencePenaltyLoss
from isda.networks import Network

__all__ = ["ConfidencePenalty", "ConfidencePenaltyOptions"]


@dataclass(frozen=True, kw_only=True)
class ConfidencePenaltyOptions:
    """What may follow ``confidence-penalty:``."""

    beta: float = 0.1
    """Weight of the entropy of the prediction."""


class ConfidencePenalty(LossMethod):
    """`isda.losses.ConfidencePenalty`."""

    name = "confidence-penalty"
    Options = ConfidencePenaltyOptions
    grid = {"beta": (0.05, 0.1, 0.3, 0.5, 1.0)}  # noqa: RUF012, a class variable of the base

    @classmethod
    def make_criterion(
        cls, options: ConfidencePenaltyOptions, network: Network, config: Config, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The loss."""
        return ConfidencePenaltyLoss(options.beta, cross_entropy=cross_entropy)
