"""The losses that ISDA is compared with in its paper, and the confidence penalty."""

from isda.losses.rivals.feature_losses import (
    CenterLoss,
    DistributionNet,
    LargeMarginLoss,
    centre_steps,
    large_margin_logits,
    margin_function,
    sampled_cross_entropy,
)
from isda.losses.rivals.logit_losses import (
    ConfidencePenalty,
    DisturbLabel,
    FocalLoss,
    LabelSmoothing,
    LqLoss,
    disturb_labels,
    focal_rows,
    lq_rows,
    prediction_entropy,
)

__all__ = [
    "CenterLoss",
    "ConfidencePenalty",
    "DistributionNet",
    "DisturbLabel",
    "FocalLoss",
    "LabelSmoothing",
    "LargeMarginLoss",
    "LqLoss",
    "centre_steps",
    "disturb_labels",
    "focal_rows",
    "large_margin_logits",
    "lq_rows",
    "margin_function",
    "prediction_entropy",
    "sampled_cross_entropy",
]
