"""The losses that ISDA is compared with in its paper, and the confidence penalty, one file each."""

from isda.losses.rivals.center import CenterLoss, centre_steps
from isda.losses.rivals.confidence_penalty import ConfidencePenalty, prediction_entropy
from isda.losses.rivals.distribution_net import DistributionNet, sampled_cross_entropy
from isda.losses.rivals.disturb_label import DisturbLabel, disturb_labels
from isda.losses.rivals.focal import FocalLoss, focal_rows
from isda.losses.rivals.label_smoothing import LabelSmoothing
from isda.losses.rivals.large_margin import LargeMarginLoss, large_margin_logits, margin_function
from isda.losses.rivals.lq import LqLoss, lq_rows

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
