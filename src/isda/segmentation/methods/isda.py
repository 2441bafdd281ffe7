"""ISDA of every pixel: each classifier has a criterion with statistics of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from isda.classification.methods import ISDAOptions
from isda.data.segmentation import IGNORED
from isda.engine.recipe import Recipe
from isda.errors import of_type
from isda.losses import ISDALoss
from isda.networks.segmentation import SegmentationNetwork
from isda.segmentation.config import Config
from isda.segmentation.methods.base import Head, PixelOptions, SegmentationMethod

__all__ = ["ISDA", "ISDAPixelOptions", "ISDATilted"]


@dataclass(frozen=True, kw_only=True)
class ISDAPixelOptions(ISDAOptions, PixelOptions):
    """What may follow ``isda:``; see ISDALoss and the covariance models."""


class ISDA(SegmentationMethod):
    """The bound of Prop. 1 for every pixel; its strength grows over the whole run.

    A pixel's statistics are those of the label nearest to it; the augmented logits are upsampled and compared with the
    labels at their resolution, so that lambda_0=0 is cross-entropy to the bit.
    """

    name = "isda"
    Options = ISDAPixelOptions

    def __init__(self, options: ISDAPixelOptions, network: SegmentationNetwork, config: Config) -> None:
        super().__init__(options, network, config)
        heads = {"main": network.classifier, "auxiliary": network.auxiliary_classifier}
        self.criteria = nn.ModuleDict(
            {name: _criterion(options, head, config) for name, head in heads.items() if head is not None}
        )

    @classmethod
    def defaults(cls, recipe: Recipe, lambda_0: float | None) -> dict[str, Any]:
        """The strength and covariance of the authors' code."""
        strength = recipe.lambda_0 if lambda_0 is None else lambda_0
        return {"lambda_0": strength, "covariance": recipe.covariance, "bound": "jensen"}

    @classmethod
    def grid_for(cls, recipe: Recipe) -> dict[str, tuple[Any, ...]]:
        """The strengths that the paper chooses from."""
        return {"lambda_0": recipe.strengths}

    def pixel_losses(self, head: Head, targets: Tensor) -> Tensor:
        """The bound of the pixel's expected cross-entropy."""
        losses: Tensor = self.criteria[head.name](head.logits, targets, features=head.features, weight=head.weight)
        return losses

    def measures(self) -> dict[str, float]:
        """The strength lambda."""
        criterion = of_type(self.criteria["main"], ISDALoss)
        return {"strength": criterion.strength}


def _criterion(options: ISDAPixelOptions, head: nn.Conv2d, config: Config) -> ISDALoss:
    return ISDALoss(
        head.out_channels,
        head.in_channels,
        ignore_index=IGNORED,
        reduction="none",
        align_corners=True,
        device=head.weight.device,
        dtype=head.weight.dtype,
        **options.criterion_settings(head, config.total_steps),
    )


class ISDATilted(ISDA):
    """The same with the tilted bound."""

    name = "isda-tilted"
    settled = {"bound": "tilted"}  # noqa: RUF012, a class variable of the base
