"""Implicit semantic data augmentation: exact, cheap and drop-in for PyTorch."""

from typing import TYPE_CHECKING, Any

from isda import covariance, functional, losses
from isda.losses import ISDALoss

if TYPE_CHECKING:
    from isda.estimator import ISDAClassifier

__version__ = "0.1.0"
__all__ = ["ISDAClassifier", "ISDALoss", "__version__", "covariance", "functional", "losses"]


def __getattr__(name: str) -> Any:
    """Import the scikit-learn estimator when it is first asked for: the core needs torch and numpy only."""
    if name == "ISDAClassifier":
        from isda.estimator import ISDAClassifier

        return ISDAClassifier
    raise AttributeError(f"module 'isda' has no attribute {name!r}")
