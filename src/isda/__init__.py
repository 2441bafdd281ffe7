"""Implicit semantic data augmentation: exact, cheap and drop-in for PyTorch."""

from isda import covariance, functional, losses
from isda.losses import ISDALoss

__version__ = "0.1.0"
__all__ = ["ISDALoss", "__version__", "covariance", "functional", "losses"]
