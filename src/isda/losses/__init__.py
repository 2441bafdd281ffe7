"""Loss functions."""

from isda.losses.explicit import ExplicitLoss
from isda.losses.isda import ISDALoss
from isda.losses.semantic import SemanticLoss

__all__ = ["ExplicitLoss", "ISDALoss", "SemanticLoss"]
