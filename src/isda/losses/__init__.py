"""Loss functions."""

from isda.losses.isda import ISDALoss

__all__ = ["ISDALoss"]
