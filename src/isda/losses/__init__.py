"""Loss functions of ISDA."""

from isda.losses.base import AugmentedLoss
from isda.losses.bce import ISDABCELoss
from isda.losses.explicit import ExplicitLoss
from isda.losses.isda import ISDALoss
from isda.losses.semantic import SemanticLoss

__all__ = [
    "AugmentedLoss",
    "ExplicitLoss",
    "ISDABCELoss",
    "ISDALoss",
    "SemanticLoss",
]
