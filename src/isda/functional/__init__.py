"""The stateless functions of isda, one file per family of equations (docs/equations.md is the index).

This module exports the public ones; the files also hold what covariance models and losses are made of.
"""

from isda.functional import operators as operators
from isda.functional.binary import binary_expectation, binary_jensen_bound, expected_softplus
from isda.functional.bounds import (
    augmented_logits,
    jensen_bound,
    jensen_consistency,
    tilted_bound,
    tilted_consistency,
    tilted_variance,
)
from isda.functional.long_tail import class_balanced_weights, label_margins, mean_shift, prior_offsets
from isda.functional.quadratic import margin_variance
from isda.functional.sampling import (
    Estimate,
    diagonal_gaussian_entropy,
    explicit_consistency,
    explicit_logits,
    explicit_loss,
    feature_uncertainty_loss,
    gaussian_entropy,
    monte_carlo,
)

__all__ = [
    "Estimate",
    "augmented_logits",
    "binary_expectation",
    "binary_jensen_bound",
    "class_balanced_weights",
    "diagonal_gaussian_entropy",
    "expected_softplus",
    "explicit_consistency",
    "explicit_logits",
    "explicit_loss",
    "feature_uncertainty_loss",
    "gaussian_entropy",
    "jensen_bound",
    "jensen_consistency",
    "label_margins",
    "margin_variance",
    "mean_shift",
    "monte_carlo",
    "prior_offsets",
    "tilted_bound",
    "tilted_consistency",
    "tilted_variance",
]
