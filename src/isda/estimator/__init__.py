
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isda.estimator.classifier import ISDAClassifier




def __getattr__(name: str) -> Any:
    """Import on first access: `isda embed` does not need scikit-learn."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from isda._utils.extras import needed_by

    with needed_by(name):
        return getattr(import_module(f"isda.estimator.{_MODULES[name]}"), name)
