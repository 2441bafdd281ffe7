"""Loss functions: ISDA's, and those it is compared with."""

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
    "FocalLoss",
    "ISDALoss",
    "LabelSmoothing",
    "LargeMarginLoss",
    "LqLoss",
]
