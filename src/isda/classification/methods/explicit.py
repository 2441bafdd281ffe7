"""Explicit semantic augmentation as a method of training: M drawn features per sample in place of a bound."""

from __future__ import annotations

from isda.classification.methods.semantic import SemanticMethod
from isda.classification.methods.semantic_options import ExplicitOptions
from isda.losses import ExplicitLoss

__all__ = ["Explicit"]


class Explicit(SemanticMethod):
    """The paper's equation 5, which ISDA is the limit of; its strength grows over the whole run."""

    name = "explicit"
    Options = ExplicitOptions
    criterion_type = ExplicitLoss
    term = "explicit"
