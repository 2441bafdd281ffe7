"""The scikit-learn estimator `ISDAClassifier`, `refit` of a network's classifier by it, and embeddings to fit it on."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isda.estimator.classifier import ISDAClassifier
    from isda.estimator.refitting import RefitResult, refit

__all__ = ["ISDAClassifier", "RefitResult", "refit"]

_MODULES = {"ISDAClassifier": "classifier", "RefitResult": "refitting", "refit": "refitting"}


def __getattr__(name: str) -> Any:
    """Import on first access: `isda embed` does not need scikit-learn."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from isda._utils.extras import needed_by

    with needed_by(name):
        return getattr(import_module(f"isda.estimator.{_MODULES[name]}"), name)
