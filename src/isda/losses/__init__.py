"""Loss functions: ISDA's, and those it is compared with."""

from isda.losses.base import AugmentedLoss
from isda.losses.bce import ISDABCELoss
from isda.losses.explicit import ExplicitLoss
from isda.losses.isda import ISDALoss
from isda.losses.rivals import (
    CenterLoss,
    ConfidencePenalty,
    DistributionNet,
    DisturbLabel,
    FocalLoss,
    LabelSmoothing,
    LargeMarginLoss,
    LqLoss,
)
from isda.losses.semantic import SemanticLoss

__all__ = [
    "AugmentedLoss",
    "CenterLoss",
    "ConfidencePenalty",
    "DistributionNet",
    "DisturbLabel",
    "ExplicitLoss",
    "FocalLoss",
    "ISDABCELoss",
    "ISDALoss",
    "LabelSmoothing",
    "LargeMarginLoss",
    "LqLoss",
    "SemanticLoss",
]
