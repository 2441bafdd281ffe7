"""What a criterion can be given for classes of very different sizes, one file each (docs/longtail.md)."""

from isda.losses.long_tail.confusion_shift import ConfusionShift
from isda.losses.long_tail.ldam import LDAMMargins
from isda.losses.long_tail.logit_adjustment import LogitAdjustment
from isda.losses.long_tail.meta import MetaLearner, meta_gradient
from isda.losses.long_tail.providers import MeanShift, Offset

__all__ = [
    "ConfusionShift",
    "LDAMMargins",
    "LogitAdjustment",
    "MeanShift",
    "MetaLearner",
    "Offset",
    "meta_gradient",
]
