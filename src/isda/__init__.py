"""Implicit semantic data augmentation: exact, cheap and drop-in for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isda import bounds, lab
    from isda.bce import ISDABCELoss
    from isda.classifier import ISDAClassifier
    from isda.explicit import ExplicitLoss
    from isda.loss import ISDALoss

__all__ = ["ExplicitLoss", "ISDABCELoss", "ISDAClassifier", "ISDALoss", "__version__", "bounds", "lab"]

__version__ = "0.5.0"

_MODULES = {
    "ExplicitLoss": "isda.explicit",
    "ISDABCELoss": "isda.bce",
    "ISDAClassifier": "isda.classifier",
    "ISDALoss": "isda.loss",
}
"""Where names are that are imported on first access, so that `isda --help` does not import torch."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in ("bounds", "lab"):
        return import_module(f"isda.{name}")
    raise AttributeError(f"module 'isda' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
