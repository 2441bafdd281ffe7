"""The supervised methods of `isda train`, one file each."""

from __future__ import annotations

from isda.classification.methods.base import ClassificationMethod
from isda.classification.methods.center import Center
from isda.classification.methods.confidence_penalty import ConfidencePenalty
from isda.classification.methods.cross_entropy import CrossEntropy
from isda.classification.methods.distribution_net import DistributionNet
from isda.classification.methods.disturb_label import DisturbLabel
from isda.classification.methods.focal import Focal
from isda.classification.methods.isda import ISDA, ISDATilted
from isda.classification.methods.isda_options import ISDAOptions
from isda.classification.methods.label_smoothing import LabelSmoothing
from isda.classification.methods.large_margin import LargeMargin
from isda.classification.methods.loss_method import LossMethod, with_isda
from isda.classification.methods.lq import Lq
from isda.engine.named_method import find_named

__all__ = ["METHODS", "ClassificationMethod", "ISDAOptions", "find_method"]

_LOSSES: tuple[type[LossMethod], ...] = (LabelSmoothing, DisturbLabel, Focal, Lq, ConfidencePenalty, Center)
_METHODS: tuple[type[ClassificationMethod], ...] = (CrossEntropy, ISDA, ISDATilted, LargeMargin, DistributionNet)

METHODS: dict[str, type[ClassificationMethod]] = {
    method.name: method for method in (*_METHODS, *_LOSSES, *map(with_isda, _LOSSES))
}


def find_method(name: str) -> type[ClassificationMethod]:
    """The method of a name: one of METHODS, or package.module.Class.

    Example:
        >>> find_method("isda").__name__
        'ISDA'
    """
    return find_named(name, METHODS, ClassificationMethod)  # type: ignore[type-abstract]
