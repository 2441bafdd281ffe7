"""The scikit-learn estimator `ISDAClassifier`, and embeddings to fit it on."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isda.estimator.classifier import ISDAClassifier

__all__ = ["ISDAClassifier"]


def __getattr__(name: str) -> Any:
    """Import the classifier on first access: `isda embed` does not need scikit-learn."""
    if name != "ISDAClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from isda._utils.extras import needed_by

    with needed_by("ISDAClassifier"):
        from isda.estimator.classifier import ISDAClassifier
    return ISDAClassifier
