"""DisturbLabel as a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from isda.classification.config import Config
from isda.classification.methods.loss_method import LossMethod
from isda.engine.recipe import Recipe
from isda.losses import DisturbLabel as DisturbLabelLoss
from isda.networks import Network

__all__ = ["DisturbLabel", "DisturbLabelOptions"]


@dataclass(frozen=True, kw_only=True)
class DisturbLabelOptions:
    """What may follow ``disturb-label:``."""

    rate: float = 0.05
    """Share of the labels that are drawn anew in a step."""


class DisturbLabel(LossMethod):
    """`isda.losses.DisturbLabel`; its draws follow from the seed, the step and the process."""

    name = "disturb-label"
    Options = DisturbLabelOptions
    grid = {"rate": (0.02, 0.05, 0.1, 0.2, 0.3)}  # noqa: RUF012, a class variable of the base

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """The paper's rate for the network and the data set."""
        return {"rate": recipe.label_noise}

    @classmethod
    def make_criterion(
        cls, options: DisturbLabelOptions, network: Network, config: Config, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The loss."""
        return DisturbLabelLoss(options.rate, cross_entropy=cross_entropy)
