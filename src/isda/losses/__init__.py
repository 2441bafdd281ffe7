"""Loss functions: ISDA's, and those it is compared with."""

from isda.losses.base import SemanticLoss
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

__all__ = [
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
