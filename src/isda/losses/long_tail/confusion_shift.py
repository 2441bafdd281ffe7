"""Means moved towards the classes that a class is taken for (RISDA, Chen et al., AAAI 2022)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from isda.covariance import ConfusionCovariance, CovarianceModel
from isda.losses.long_tail.providers import MeanShift

__all__ = ["ConfusionShift"]


class ConfusionShift(MeanShift):
    """delta_y = sum_k g_yk mu_k - mu_y, g the confusions and mu the means that a ConfusionCovariance keeps.

    Args:
        alpha: how far, at full strength; the authors choose from 0.25 to 1.5.

    Example:
        >>> from isda import ISDALoss
        >>> from isda.covariance import FullCovariance
        >>> mixed = ConfusionCovariance(FullCovariance(num_classes=3, feature_dim=8))
        >>> criterion = ISDALoss(3, 8, lambda_0=0.5, covariance=mixed, shift=ConfusionShift(alpha=0.5))
    """

    def __init__(self, alpha: float = 0.5) -> None:
        super().__init__(alpha)

    def check(self, covariance: CovarianceModel) -> None:
        """Only a ConfusionCovariance knows confusions."""
        if not isinstance(covariance, ConfusionCovariance):
            raise ValueError(
                f"covariance must be a ConfusionCovariance for a ConfusionShift, got {type(covariance).__name__}"
            )

    @torch.no_grad()
    def vectors(self, covariance: CovarianceModel) -> Tensor:
        """(C, A)."""
        self.check(covariance)
        covariance = cast(ConfusionCovariance, covariance)
        mean = covariance.mean
        return covariance.graph @ mean - mean

    def extra_repr(self) -> str:
        """Show the settings in repr()."""
        return f"alpha={self.alpha:g}"
