"""The stateless functions behind isda, one file per family of equations (docs/equations.md is their index)."""

from isda.functional.bounds import (
    augmented_logits,
    jensen_bound,
    margin_from_gram,
    quadratic_tables,
    tilted_bound,
    tilted_variance,
)
from isda.functional.consistency import jensen_consistency, tilted_consistency
from isda.functional.diagonal import diagonal_gram, diagonal_margins, diagonal_variances
from isda.functional.entropy import diagonal_gaussian_entropy, feature_uncertainty_loss, gaussian_entropy
from isda.functional.grouping import Groups, group_rows
from isda.functional.moments import absorb_means, add_outer_products, add_squares
from isda.functional.quadratic import full_gram, full_quadratic, full_transform, margin_from_forms, margin_variance
from isda.functional.sampling import Estimate, explicit_loss, monte_carlo, symmetric_root
from isda.functional.sketch import append_rows, shrink
from isda.functional.tilt import find_tilt

__all__ = [
    "Estimate",
    "Groups",
    "absorb_means",
    "add_outer_products",
    "add_squares",
    "append_rows",
    "augmented_logits",
    "diagonal_gaussian_entropy",
    "diagonal_gram",
    "diagonal_margins",
    "diagonal_variances",
    "explicit_loss",
    "feature_uncertainty_loss",
    "find_tilt",
    "full_gram",
    "full_quadratic",
    "full_transform",
    "gaussian_entropy",
    "group_rows",
    "jensen_bound",
    "jensen_consistency",
    "margin_from_forms",
    "margin_from_gram",
    "margin_variance",
    "monte_carlo",
    "quadratic_tables",
    "shrink",
    "symmetric_root",
    "tilted_bound",
    "tilted_consistency",
    "tilted_variance",
]
