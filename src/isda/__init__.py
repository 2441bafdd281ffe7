"""Implicit semantic data augmentation: exact, cheap and drop-in for PyTorch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from isda import covariance, functional, losses
from isda.losses import ISDALoss

if TYPE_CHECKING:
    from isda import data, networks, report, semi, train
    from isda.estimator import ISDAClassifier

__version__ = "0.1.0"
__all__ = [
    "ISDAClassifier",
    "ISDALoss",
    "__version__",
    "covariance",
    "data",
    "functional",
    "losses",
    "networks",
    "report",
    "semi",
    "train",
]

_LATER = {"ISDAClassifier": "isda.estimator"} | {
    room: f"isda.{room}" for room in ("data", "networks", "report", "semi", "train")
}
"""What is imported when it is first asked for, and from where: the core needs torch and numpy only."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'isda' has no attribute {name!r}")
    module = import_module(_LATER[name])
    return module if module.__name__ == f"isda.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
