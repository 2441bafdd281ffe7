"""The scikit-learn classifier."""

from isda.extras import needed_by

with needed_by("ISDAClassifier"):
    from isda.estimator.classifier import ISDAClassifier

__all__ = ["ISDAClassifier"]
