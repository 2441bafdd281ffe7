"""The scikit-learn estimator `ISDAClassifier`, and embeddings to fit it on."""

from isda.estimator.classifier import ISDAClassifier

__all__ = ["ISDAClassifier"]
