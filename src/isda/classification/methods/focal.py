"""Focal loss as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from isda.classification.config import Config
from isda.classification.methods.loss_method import LossMethod
from isda.losses import FocalLoss
from isda.networks import Network

__all__ = ["Focal", "FocalOptions"]


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
        cls, options: FocalOptions, network: Network, config: Config, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The loss."""
        return FocalLoss(options.alpha, options.gamma, cross_entropy=cross_entropy)
