"""Label smoothing as a method."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from isda.classification.config import Config
from isda.classification.methods.loss_method import LossMethod
from isda.losses import LabelSmoothing as LabelSmoothingLoss
from isda.networks import Network

__all__ = ["LabelSmoothing", "LabelSmoothingOptions"]


@dataclass(frozen=True, kw_only=True)
class LabelSmoothingOptions:
    """What may follow ``label-smoothing:``."""

    smoothing: float = 0.1
    """Share of the target that is spread over all classes."""


class LabelSmoothing(LossMethod):
    """`isda.losses.LabelSmoothing`."""

    name = "label-smoothing"
    Options = LabelSmoothingOptions
    grid = {"smoothing": (0.02, 0.05, 0.1, 0.2, 0.3)}  # noqa: RUF012, a class variable of the base

    @classmethod
    def make_criterion(
        cls, options: LabelSmoothingOptions, network: Network, config: Config, cross_entropy: nn.Module | None
    ) -> nn.Module:
        """The loss."""
        return LabelSmoothingLoss(options.smoothing, cross_entropy=cross_entropy)
