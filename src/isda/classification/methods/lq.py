"""L_q loss as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from isda.classification.config import Config
from isda.classification.methods.loss_method import LossMethod
from isda.losses import LqLoss
from isda.networks import Network

__all__ = ["Lq", "LqOptions"]


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
        cls, options: LqOptions, network: Network, config: Config, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The loss."""
        return LqLoss(options.q, cross_entropy=cross_entropy)
