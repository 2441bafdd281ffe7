"""The stateless functions behind isda, one file per family of equations (docs/equations.md is their index).

Named here is what users call; the files hold what the covariance models and losses are made of.
"""

from isda.functional.binary import binary_expectation, binary_jensen_bound, expected_softplus
from isda.functional.bounds import augmented_logits, jensen_bound, tilted_bound, tilted_variance
from isda.functional.consistency import jensen_consistency, tilted_consistency
from isda.functional.entropy import diagonal_gaussian_entropy, feature_uncertainty_loss, gaussian_entropy
from isda.functional.long_tail import class_balanced_weights, label_margins, mean_shift, prior_offsets
from isda.functional.quadratic import margin_variance
from isda.functional.sampling import Estimate, explicit_consistency, explicit_logits, explicit_loss, monte_carlo

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
