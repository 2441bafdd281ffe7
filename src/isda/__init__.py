"""Implicit semantic data augmentation: exact, cheap and drop-in for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isda import covariance, functional, lab, losses
    from isda.estimator import ISDAClassifier, refit
    from isda.losses import ISDABCELoss, ISDALoss

__all__ = [
    "ISDABCELoss",
    "ISDAClassifier",
    "ISDALoss",
    "__version__",
    "covariance",
    "functional",
    "lab",
    "losses",
    "refit",
]

__version__ = "0.4.0"

_NAMES = {
    "ISDABCELoss": "isda.losses",
    "ISDAClassifier": "isda.estimator",
    "ISDALoss": "isda.losses",
    "refit": "isda.estimator",
}
"""Names that are imported on first access, so that `isda --help` does not import torch."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        from isda._utils.extras import needed_by

        with needed_by(f"isda.{name}"):
            return getattr(import_module(_NAMES[name]), name) if name in _NAMES else import_module(f"isda.{name}")
    raise AttributeError(f"module 'isda' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
